"""Checks of what comes from the cloud: does a hint arrive?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from django.conf import settings

from core.doctor.findings import Check, Finding, broken, doubtful, fine
from journal.clock import database_now
from journal.models import Heartbeat

SILENT_SECONDS: Final = 120
LISTENER: Final = "listener"
NOTIFICATION: Final = "notification"


def host_checks() -> Mapping[str, Check]:
    """Return them by name."""
    return {"listener": check_listener}


def check_listener() -> Iterator[Finding]:
    """Tell when the listener was alive, and when it last heard a hint."""
    seen = dict(
        Heartbeat.objects.filter(name__in=(LISTENER, NOTIFICATION)).values_list("name", "beaten_at")
    )
    if LISTENER not in seen:
        if settings.HEADROOM.listener.transport_url is None:
            yield fine("no listener: changes are seen by polling")
        else:
            yield broken("the listener was never seen", "start ./run serve listener, read its log")
        return
    now = database_now()
    silent_seconds = int((now - seen[LISTENER]).total_seconds())
    told = f"the listener was seen {silent_seconds} s ago"
    if silent_seconds > SILENT_SECONDS:
        yield broken(told, "start ./run serve listener; does it reach RabbitMQ?")
    elif NOTIFICATION not in seen:
        yield doubtful(f"{told}, and heard nothing yet", "docs/notifications.md, Nova")
    else:
        heard_seconds = int((now - seen[NOTIFICATION]).total_seconds())
        yield fine(f"{told}, and heard a hint {heard_seconds} s ago")
