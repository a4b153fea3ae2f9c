"""Which headers are handed on, and under which names (RFC 9110, 7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

#: What concerns one connection alone.
HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
#: What is said anew of a request, and what is meant for the gateway itself.
OF_THE_GATEWAY: Final = frozenset(
    {"host", "content-length", "content-type", "expect", "x-cortex-feature-mode"}
)
_PREFIX: Final = "HTTP_"
_UNPREFIXED: Final = (("CONTENT_TYPE", "Content-Type"), ("CONTENT_LENGTH", "Content-Length"))

Header = tuple[str, str]


def request_headers(environ: Mapping[str, object]) -> list[Header]:
    """Return the headers that go on to the other side.

    Args:
        environ: The request as WSGI has it.
    """
    dropped = _named_in(str(environ.get("HTTP_CONNECTION", "")))
    found = [
        (name, str(text))
        for key, text in environ.items()
        if key.startswith(_PREFIX)
        and (name := _spelled(key))
        and (not dropped or name.lower() not in dropped)
    ]
    for key, name in _UNPREFIXED:
        text = environ.get(key)
        if text:
            found.append((name, str(text)))
    return found


def answer_headers(received: Iterable[Header]) -> dict[str, str]:
    """Return the headers that go back to the client; lines of one name are joined."""
    listed = list(received)
    dropped = HOP_BY_HOP.union(
        *(_named_in(text) for name, text in listed if name.lower() == "connection")
    )
    found: dict[str, str] = {}
    for name, text in listed:
        if name.lower() not in dropped:
            found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def _named_in(connection: str) -> frozenset[str]:
    return frozenset(part.strip().lower() for part in connection.split(",") if part.strip())


@lru_cache(maxsize=1024)
def _spelled(key: str) -> str:
    """Return the header behind a name of WSGI's; empty if it stays here."""
    name = key[len(_PREFIX) :].replace("_", "-")
    if name.lower() in HOP_BY_HOP or name.lower() in OF_THE_GATEWAY:
        return ""
    return name.title()
