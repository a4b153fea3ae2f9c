"""Logins to the admin: where they come from, and what is said to who failed too often."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address, ip_network

from axes.models import AccessAttempt
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from journal.counters import LOCKED_OUT_LOGINS

TOO_MANY = 429
MAX_NAME = 150
SITE_BITS = 64
"""Of an IPv6 address, which its holder cannot change: it is counted as one."""


def client_address(request: HttpRequest) -> str | None:
    """Return the address that a login comes from (``AXES_CLIENT_IP_CALLABLE``).

    Behind proxies it is the entry of ``X-Forwarded-For`` that the outermost of ours has added;
    what stands left of it was sent by the client and proves nothing.
    """
    proxies = settings.HEADROOM.admin.proxy_count
    hops = [hop.strip() for hop in request.META.get("HTTP_X_FORWARDED_FOR", "").split(",")]
    forwarded = hops[-proxies] if 0 < proxies <= len(hops) else ""
    return _counted_address(forwarded) or _counted_address(request.META.get("REMOTE_ADDR", ""))


def _counted_address(text: str) -> str | None:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, SITE_BITS), strict=False).network_address)


def login_name(request: HttpRequest, credentials: Mapping[str, object] | None) -> str:
    """Return the name of a login as it is kept (``AXES_USERNAME_CALLABLE``): cut, if too long."""
    given = (credentials or request.POST).get("username")
    return str(given or "")[:MAX_NAME]


def locked_out(
    request: HttpRequest, original: HttpResponse | None, credentials: object
) -> HttpResponse:
    """Return the page for an address with too many failures (``AXES_LOCKOUT_CALLABLE``).

    It says nothing of the user, who need not exist.
    """
    LOCKED_OUT_LOGINS.inc()
    seconds = settings.HEADROOM.admin.lockout_seconds
    context = {"title": "Too many failed logins", "minutes": -(-seconds // 60)}
    response = render(request, "admin/locked_out.html", context, status=TOO_MANY)
    response.headers["Retry-After"] = str(seconds)
    return response


def forget_failed_logins(*, now: datetime) -> int:
    """Delete failed logins that do not count any more; return how many."""
    oldest = now - timedelta(seconds=settings.HEADROOM.admin.lockout_seconds)
    deleted, _ = AccessAttempt.objects.filter(attempt_time__lt=oldest).delete()
    return int(deleted)
