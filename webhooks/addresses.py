"""Where deliveries may go: https, and public addresses unless settings say otherwise."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from django.conf import settings

from journal.errors import InvalidInput

PORTS = {"https": 443, "http": 80}


class AddressForbidden(InvalidInput):
    """An address that deliveries do not go to."""

    code = "webhook_address_forbidden"


def check_url(url: str) -> tuple[str, str, int, str]:
    """Return scheme, host, port and target of an address.

    Raises:
        AddressForbidden: it is not https, or has a user or a fragment.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise AddressForbidden(f"{url!r}: {error}") from error
    schemes = ("https", "http") if settings.HEADROOM.webhooks.allow_http else ("https",)
    if parts.scheme not in schemes or not host:
        raise AddressForbidden(
            f"{url!r}: must begin with {' or '.join(f'{one}://' for one in schemes)}"
        )
    if "@" in parts.netloc or parts.fragment:
        raise AddressForbidden(f"{url!r}: neither a user nor a fragment may be in it")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme, host, port or PORTS[parts.scheme], target


def allowed_address(host: str, port: int) -> str:
    """Return an IP address of a host; the connection goes there, whatever the name is next.

    Raises:
        AddressForbidden: one of its addresses is not public, and in no network of the settings.
        OSError: it has none.
    """
    networks = [ip_network(one) for one in settings.HEADROOM.webhooks.private_networks]
    found = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for text in found:
        address = _plain(ip_address(text.partition("%")[0]))
        is_allowed = any(
            address.version == network.version and address in network for network in networks
        )
        if not (is_allowed or (address.is_global and not address.is_multicast)):
            raise AddressForbidden(
                f"{host} is {text}: not public, and in no network of PRIVATE_NETWORKS"
            )
    return found[0]


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
