"""Parts of answers that several endpoints share: URLs, times, JSON (spec placement, 2.3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate
from functools import cached_property, lru_cache
from http.cookies import SimpleCookie
from typing import Final

import orjson
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port, validate_host
from django.http.response import ResponseHeaders

from core.conf import headroom
from journal.known_settings import known_setting

#: Where the server says what it takes a file as (``config.server.door``).
FILE_BODY: Final = "headroom.file_body"
#: Where it puts a body that is not in memory; closed once the request is answered.
INPUT_FILE: Final = "headroom.input_file"
MOUNT: Final = "/placement"
JSON_TYPE: Final = "application/json"
DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
CACHE_HEADERS_SINCE: Final = 15
AGGREGATES_SINCE: Final = 1
TRAITS_SINCE: Final = 6
ALLOCATION_LINKS_SINCE: Final = 11
NESTED_SINCE: Final = 14


def prefix_of(request: HttpRequest) -> str:
    """Return what stands before every path of the API."""
    return f"{request.META.get('SCRIPT_NAME', '')}{MOUNT}"


def absolute_url(request: HttpRequest, path: str) -> str:
    """Return a URL of the API as its caller can use it.

    Args:
        request: Whose scheme and host are taken; those of a proxy if it is trusted.
        path: Path below the mount point.
    """
    scheme = request.scheme or "http"
    if headroom().placement.trusted_proxy_headers:
        scheme = request.META.get("HTTP_X_FORWARDED_PROTO", scheme)
    return f"{scheme}://{host_of(request)}{prefix_of(request)}{path}"


def host_of(request: HttpRequest) -> str:
    """Return the host that a request asks for; that of a proxy if it is trusted."""
    meta = request.META
    host = meta.get("HTTP_HOST") or _own_host(request)
    if headroom().placement.trusted_proxy_headers:
        host = meta.get("HTTP_X_FORWARDED_HOST", host)
    return str(host)


def is_served_host(host: str) -> bool:
    """Return whether a host, with or without port, is among the allowed ones."""
    return _is_among(host, tuple(known_setting("ALLOWED_HOSTS")))


@lru_cache(maxsize=1024)
def _is_among(host: str, allowed: tuple[str, ...]) -> bool:
    return validate_host(split_domain_port(host)[0], allowed)


def _own_host(request: HttpRequest) -> str:
    name, port = request.META.get("SERVER_NAME"), str(request.META.get("SERVER_PORT"))
    return f"{name}" if port == DEFAULT_PORTS.get(request.scheme or "") else f"{name}:{port}"


#: Headers as answers keep them: by their name in lower case.
Prepared = Mapping[str, tuple[str, str]]


class PlacementHeaders(ResponseHeaders):
    """Headers of an answer, of which those that we wrote need no look at their characters."""

    def __init__(self, prepared: Prepared) -> None:
        self._store = dict(prepared)

    def put(self, prepared: Prepared) -> None:
        """Set headers that are known to be well-formed."""
        self._store.update(prepared)

    def __contains__(self, name: object) -> bool:
        """Return whether a header is set."""
        return isinstance(name, str) and name.lower() in self._store

    def pairs(self) -> list[tuple[str, str]]:
        """Return the headers as the server wants them."""
        return list(self._store.values())


class PiecesResponse(HttpResponse):
    """An answer with a body in pieces; only the server puts them together.

    A body of some megabytes is not copied once more than it must be. The framework's own way to
    make an answer takes longer than to read a small one from the database: what it would set is
    set at once.
    """

    headers: PlacementHeaders
    closed = False
    _charset = None
    _reason_phrase = None
    _handler_class = None

    def __init__(
        self, pieces: Iterable[bytes], *, status: int = 200, prepared: Prepared | None = None
    ) -> None:
        self.headers = PlacementHeaders(_JSON if prepared is None else prepared)
        self.status_code = status
        self._container = list(pieces)  # what the framework's own content is kept in

    @cached_property
    def cookies(self) -> SimpleCookie:  # type: ignore[override]  # the framework's is set at once
        """Nobody sets any here; the framework asks for them elsewhere."""
        return SimpleCookie()

    @cached_property
    def _resource_closers(self) -> list[Callable[[], object]]:
        return []


_JSON: Final[Prepared] = {"content-type": ("Content-Type", JSON_TYPE)}


def put_headers(response: HttpResponse, prepared: Prepared) -> None:
    """Set headers that are known to be well-formed."""
    headers = response.headers
    if isinstance(headers, PlacementHeaders):
        headers.put(prepared)
        return
    for name, text in prepared.values():
        headers[name] = text


def pairs_of(response: HttpResponse) -> list[tuple[str, str]]:
    """Return the headers of an answer as the server wants them."""
    headers = response.headers
    return headers.pairs() if isinstance(headers, PlacementHeaders) else list(headers.items())


def json_answer(payload: object, *, status: int = 200) -> HttpResponse:
    """Return an answer with a JSON body."""
    return PiecesResponse((orjson.dumps(payload),), status=status)


def empty_answer(*, status: int = 204) -> HttpResponse:
    """Return an answer without a body, and without a content type."""
    return PiecesResponse((b"",), status=status, prepared={})


def put_cache_headers(response: HttpResponse, minor: int, modified_at: float | None) -> None:
    """Say when the answer's objects changed last, in versions that do.

    Args:
        response: The answer.
        minor: Negotiated version.
        modified_at: Newest change, seconds since 1970; now when ``None``.
    """
    if minor >= CACHE_HEADERS_SINCE:
        put_headers(response, _cache_headers(int(modified_at or time.time())))


@lru_cache(maxsize=4096)
def _cache_headers(seconds: int) -> Prepared:
    return {
        "last-modified": ("Last-Modified", formatdate(seconds, usegmt=True)),
        "cache-control": ("Cache-Control", "no-cache"),
    }


def provider_links(prefix: str, uuid: str, minor: int) -> list[dict[str, str]]:
    """Return the links of a provider, in their fixed order."""
    base = f"{prefix}/resource_providers/{uuid}"
    links = [{"rel": "self", "href": base}]
    links += [{"rel": rel, "href": f"{base}/{rel}"} for rel in link_names(minor)]
    return links


def link_names(minor: int) -> Iterable[str]:
    """Return what a provider links to besides itself."""
    names = ["inventories", "usages"]
    if minor >= AGGREGATES_SINCE:
        names.append("aggregates")
    if minor >= TRAITS_SINCE:
        names.append("traits")
    if minor >= ALLOCATION_LINKS_SINCE:
        names.append("allocations")
    return names
