"""A request for a second view, after its body was read."""

from __future__ import annotations

from io import BytesIO

from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest

from placement.api.rendering import INPUT_FILE


def request_again(request: HttpRequest, body: bytes) -> HttpRequest:
    """Return a request as it came.

    Args:
        request: As Django made it, which has decoded the path that WSGI gave it.
        body: Which was read.
    """
    path = request.path_info.encode().decode("latin-1")
    changed = {"PATH_INFO": path, "wsgi.input": BytesIO(body), INPUT_FILE: None}
    return WSGIRequest({**request.META, **changed})
