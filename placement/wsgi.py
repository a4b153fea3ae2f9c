"""Placement's paths before Django's own entry point.

Django signals the begin and the end of every request, among others to look after connections and
caches that these paths look after themselves or do not have. For a small answer the signals cost as
much as the view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotFound

from placement.api.rendering import FILE_BODY, MOUNT, pairs_of
from placement.api.requests import LeanRequest
from placement.middleware import BELOW_MOUNT, PlacementMiddleware

Environ = dict[str, Any]  # Any: as WSGI has it
StartResponse = Callable[[str, list[tuple[str, str]]], object]
Application = Callable[..., Any]  # Any: Django types its own entry point otherwise than WSGI does


def placement_first(application: Application) -> Application:
    """Return an application that serves Placement's paths itself and leaves the rest to another."""
    middleware = PlacementMiddleware(_elsewhere)

    def serve(environ: Environ, start_response: StartResponse) -> Any:  # Any: as above
        path = environ.get("PATH_INFO", "")
        if not path.startswith(BELOW_MOUNT) and path != MOUNT:
            return application(environ, start_response)
        response = middleware(LeanRequest(environ))
        start_response(f"{response.status_code} {response.reason_phrase}", pairs_of(response))
        if hasattr(response, "file_to_stream"):
            return environ[FILE_BODY](response.file_to_stream)
        return list(response)  # granian sends a list as one and streams anything else

    return serve


def _elsewhere(request: HttpRequest) -> HttpResponse:
    return HttpResponseNotFound()
