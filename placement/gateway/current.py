"""The client of this process for the other Placement of the settings."""

from __future__ import annotations

import threading
from typing import Any, Final

import structlog

from core.conf import headroom
from placement.domain.errors import ServiceUnavailable
from placement.gateway.upstream import Upstream, UpstreamOptions

log = structlog.get_logger(__name__)

_current: tuple[object, Upstream] | None = None
_lock: Final = threading.Lock()


def current_upstream() -> Upstream:
    """Return it, made when first needed and when the settings are others.

    Raises:
        ServiceUnavailable: a certificate of the settings cannot be read.
    """
    global _current  # noqa: PLW0603 - one per process
    settings = headroom().gateway
    known = _current
    if known is not None and known[0] is settings:
        return known[1]
    with _lock:
        if _current is None or _current[0] is not settings:
            previous = _current
            _current = (settings, _made(settings))
            if previous is not None:
                previous[1].close()
        return _current[1]


def _made(settings: Any) -> Upstream:  # Any: settings of a floor above
    try:
        return Upstream(options_of(settings))
    except OSError as error:
        log.warning("gateway_client_unusable", error=str(error))
        told = "The client of the other Placement cannot be made: see the log"
        raise ServiceUnavailable(told, headers={"Retry-After": "5"}) from error


def look_at_start() -> threading.Thread | None:
    """Ask the other Placement for its versions, if there is one, in a thread of its own.

    Without an answer a line in the log says so, and nothing else happens.
    """
    if not headroom().gateway.upstream_url:
        return None
    thread = threading.Thread(target=_look, name="gateway-look", daemon=True)
    thread.start()
    return thread


def _look() -> None:
    try:
        answer = current_upstream().send("GET", "/", headers=[("Accept", "application/json")])
        log.info("gateway_upstream_answered", status=answer.status)
    except Exception as error:  # noqa: BLE001 - whatever it is, the process serves all the same
        log.warning("gateway_upstream_unreachable", error=str(error))


def options_of(gateway: Any) -> UpstreamOptions:  # Any: settings of a floor above
    """Return the client's options that the settings stand for."""
    return UpstreamOptions(
        url=gateway.upstream_url,
        timeout_seconds=gateway.timeout_seconds,
        connect_seconds=gateway.connect_seconds,
        idle_seconds=gateway.idle_seconds,
        most_idle=gateway.most_idle,
        most_failures=gateway.most_failures,
        open_seconds=gateway.open_seconds,
        most_answer_bytes=gateway.most_answer_mib << 20,
        ca_file=str(gateway.ca_file or ""),
        cert_file=str(gateway.cert_file or ""),
        key_file=str(gateway.key_file or ""),
    )
