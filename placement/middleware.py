"""Placement's paths around the middleware of pages (spec placement, 2.3, 2.6).

Sessions, CSRF, slash redirects and the like must not touch these paths, since they add headers that
the contract excludes; each would also cost as much as a small answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import structlog
from django.http import HttpRequest, HttpResponse

from core.conf import headroom
from placement.api.base import REQUEST_ID_KEY, new_request_id
from placement.api.rendering import MOUNT, put_headers
from placement.gateway.modes import MODE_TAKEN, Mode

REQUEST_ID = "X-OpenStack-Request-ID"
LENGTH = "Content-Length"
BELOW_MOUNT = f"{MOUNT}/"
MODE_KEY = "HTTP_X_CORTEX_FEATURE_MODE"
NO_CONTENT = 204


class PlacementMiddleware:
    """Serve Placement's paths at once; pass every other request on. The outermost middleware."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Serve the request."""
        path = request.path_info
        if path == MOUNT:
            path = BELOW_MOUNT
        elif not path.startswith(BELOW_MOUNT):
            return self.get_response(request)
        request_id = new_request_id()
        request.META[REQUEST_ID_KEY] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(req=request_id)
        response = _preflight(request) or self._serve(request, path)
        _allow_origin(request, response)
        headers = response.headers
        missing = {}
        if REQUEST_ID not in headers:
            missing[REQUEST_ID.lower()] = REQUEST_ID, request_id
        if response.status_code != NO_CONTENT and LENGTH not in headers:
            missing[LENGTH.lower()] = LENGTH, str(sum(map(len, response)))
        if MODE_KEY in request.META and not headroom().gateway.upstream_url:
            response.headers[MODE_TAKEN] = Mode.LOCAL  # there is no other
        # Refusals are answers like others here; Django would write a warning for each.
        response._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001 - its own flag
        put_headers(response, missing)
        return response

    def _serve(self, request: HttpRequest, path: str) -> HttpResponse:
        view, items = self._view_of(path[len(BELOW_MOUNT) :])
        return view(request, **items)

    @cached_property
    def _view_of(self) -> Callable[[str], tuple[Callable[..., HttpResponse], Mapping[str, str]]]:
        # Views need the settings.
        if headroom().gateway.upstream_url:
            from placement.gateway.routing import configured_resolver  # noqa: PLC0415 - as above

            return configured_resolver()
        from placement.api.urls import view_of  # noqa: PLC0415 - as above

        return view_of


def _preflight(request: HttpRequest) -> HttpResponse | None:
    placement = headroom().placement
    is_preflight = (
        request.method == "OPTIONS"
        and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in request.META
        and bool(placement.cors_allowed_origin)
    )
    if not is_preflight:
        return None
    response = HttpResponse()
    if request.META.get("HTTP_ORIGIN") in placement.cors_allowed_origin:
        response["Access-Control-Allow-Headers"] = ",".join(placement.cors_allow_headers)
        response["Access-Control-Allow-Methods"] = request.META[
            "HTTP_ACCESS_CONTROL_REQUEST_METHOD"
        ]
    return response


def _allow_origin(request: HttpRequest, response: HttpResponse) -> None:
    origin = request.META.get("HTTP_ORIGIN")
    if origin and origin in headroom().placement.cors_allowed_origin:
        response["Access-Control-Allow-Origin"] = origin
