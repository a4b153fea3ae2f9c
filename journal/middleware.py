"""Request ids end to end (spec liquid, 2.2), claimed identities, what browsers may do here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog
from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse

from journal.tracing import accepted_request_id, correlation_id


class RequestIDMiddleware:
    """Take or make a request id, bind it to the logs and return it on every response."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Serve the request with its id bound."""
        request_id = _sent_id(request.headers)
        request.META["headroom.request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(req=request_id, greq=correlation_id(request_id))
        response = self.get_response(request)
        return _with_id(response, request_id)


def with_request_id(response: HttpResponse, headers: Mapping[str, str]) -> HttpResponse:
    """Return an answer that no middleware sees, with its id; headers by names in small letters."""
    return _with_id(response, _sent_id(headers))


def _sent_id(headers: Mapping[str, str]) -> str:
    return accepted_request_id(headers.get("x-request-id") or headers.get("x-openstack-request-id"))


def _with_id(response: HttpResponse, request_id: str) -> HttpResponse:
    response["X-Request-ID"] = request_id
    response["X-OpenStack-Request-ID"] = request_id
    return response


_IDENTITY_FIELDS = (
    "ROLES",
    "DOMAIN_ID",
    "DOMAIN_NAME",
    "PROJECT_ID",
    "PROJECT_NAME",
    "PROJECT_DOMAIN_ID",
    "PROJECT_DOMAIN_NAME",
    "USER_ID",
    "USER_NAME",
    "USER_DOMAIN_ID",
    "USER_DOMAIN_NAME",
)
IDENTITY_HEADERS = (
    *(f"HTTP_X_{name}" for name in _IDENTITY_FIELDS),
    *(f"HTTP_X_SERVICE_{name}" for name in _IDENTITY_FIELDS),
    "HTTP_X_IDENTITY_STATUS",
    "HTTP_X_SERVICE_IDENTITY_STATUS",
    "HTTP_X_SERVICE_CATALOG",
    "HTTP_X_IS_ADMIN_PROJECT",
    "HTTP_X_ROLE",
    "HTTP_X_USER",
    "HTTP_X_TENANT",
    "HTTP_X_TENANT_ID",
    "HTTP_X_TENANT_NAME",
    "HTTP_OPENSTACK_SYSTEM_SCOPE",
)


class IdentityHeadersMiddleware:
    """Drop headers by which a client claims an identity: with Keystone only a token does that.

    Source: spec placement, 7.3.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Serve the request without them."""
        if settings.HEADROOM.auth == "keystone":
            for name in IDENTITY_HEADERS:
                request.META.pop(name, None)
        return self.get_response(request)


ADMIN_PREFIX = "/admin/"
ADMIN_POLICY = "; ".join(
    (
        "default-src 'self'",
        # Alpine's build that parses attributes itself; no inline script, no eval.
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
STRICT_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
POLICY_HEADER = "Content-Security-Policy"
NUL = ("\x00", "%00")


class SecurityHeadersMiddleware:
    """Tell browsers what a page may load and run: nothing, except in the admin.

    A view that needs more sets the header itself and is left alone.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Serve the request and add the policy that fits its path."""
        response = self.get_response(request)
        is_admin = request.path.startswith(ADMIN_PREFIX)
        response.headers.setdefault(POLICY_HEADER, ADMIN_POLICY if is_admin else STRICT_POLICY)
        return response


class NoNulInAdminMiddleware:
    """Refuse admin addresses with a NUL character: no row can hold one, and PostgreSQL takes none.

    Django's forms refuse it; its list filters pass it on to the database, which fails.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Serve the request, or refuse it.

        Raises:
            BadRequest: the address of an admin page has a NUL character in it.
        """
        asked = f"{request.path}?{request.META.get('QUERY_STRING', '')}"
        if request.path.startswith(ADMIN_PREFIX) and any(nul in asked for nul in NUL):
            raise BadRequest
        return self.get_response(request)


def request_id_of(request: HttpRequest) -> str:
    """Return the id that the middleware gave to this request."""
    return str(request.META["headroom.request_id"])
