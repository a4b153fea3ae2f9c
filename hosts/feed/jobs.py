"""What the jobs of the feed do: passes over the configured cloud."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import structlog
from django.conf import settings
from django.db import models

from hosts.feed.hints import hinted_kinds
from hosts.feed.lists import PassKind
from hosts.feed.passes import NothingReadYet, run_pass
from hosts.feed.state import is_fed
from hosts.models import Host, Instance
from hosts.region.inventory import HYPERVISORS
from journal.errors import Busy, HeadroomError
from journal.nudges import send_task

if TYPE_CHECKING:
    from core.jobs import Run
    from hosts.clients.cloud import OpenStackCloud

log = structlog.get_logger(__name__)

FULL_TASK = "hosts.feed_pass"


def follow_changes(run: Run) -> dict[str, object]:
    """Look at the VMs that changed since the last look, and have done what else hints ask for."""
    result = _pass(run, PassKind.CHANGES)
    for kind in hinted_kinds():
        send_task(FULL_TASK, [kind.value])
    return result


def full_pass(run: Run, kind: PassKind) -> dict[str, object]:
    """Read all that the cloud lists of a kind; VMs come at once to hosts that are new."""
    return _pass(run, kind)


def _pass(run: Run, kind: PassKind) -> dict[str, object]:
    if not is_fed():
        return {"outcome": "off"}
    try:
        report = run_pass(
            kind,
            cloud=configured_cloud(settings.HEADROOM.feed.cloud),
            actor=run.actor,
            request_id=run.request_id,
        )
    except (Busy, NothingReadYet) as reason:
        return {"outcome": "skipped", "reason": reason.message}
    except HeadroomError as error:
        log.warning("feed_pass_failed", kind=kind, code=error.code, error=error.message)
        return {"outcome": "failed", "code": error.code}
    if report.of(HYPERVISORS).created and vms_wait_for_hosts():
        send_task(FULL_TASK, [PassKind.SERVERS.value])
    return {counts.section: counts.changed for counts in report.counts.values()}


def vms_wait_for_hosts() -> bool:
    """Whether VMs were listed before the host that they are on."""
    awaited = Instance.objects.filter(host=None).exclude(host_name="").values("host_name")
    named = models.Q(name__in=awaited) | models.Q(service_host__in=awaited)
    return Host.objects.filter(named).exists()


@cache
def configured_cloud(name: str) -> OpenStackCloud:
    """Return the session of this process; its login is renewed by itself.

    Raises:
        CloudUnreachable: No such cloud, or Keystone refuses.
    """
    # openstacksdk takes a second to import: only for those who need it.
    from hosts.clients.cloud import OpenStackCloud  # noqa: PLC0415

    return OpenStackCloud(name, timeout_seconds=settings.HEADROOM.feed.timeout_seconds)
