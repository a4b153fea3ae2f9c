"""Health, readiness, metrics, and the pages Django shows when no view answers."""

from __future__ import annotations

import sys
from typing import Any

import orjson
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST

from journal.auth import may_scrape, token_of
from journal.health import check_ready, check_status, shown_checks
from journal.metrics import PageBusy, shared_metrics_page
from journal.outages import as_unavailable

PLAIN_TEXT = "text/plain; charset=utf-8"
UNAUTHORIZED = "Unauthorized: send a token of the metrics page as a bearer token\n"


@require_safe
@never_cache
def livez(request: HttpRequest) -> HttpResponse:
    """Say that the process answers.

    Our web server answers this and ``/readyz`` itself, from all that it knows of its workers; these
    views are for other servers.
    """
    return HttpResponse("ok", content_type=PLAIN_TEXT)


@require_safe
@never_cache
def readyz(request: HttpRequest) -> HttpResponse:
    """Say whether the database is there and migrated; 503 with what is not."""
    is_ready, page = shown_checks(check_ready())
    return _json(page, status=200 if is_ready else 503)


@require_safe
@never_cache
def statusz(request: HttpRequest) -> HttpResponse:
    """Tell the state of everything that tasks need as well; for people, never a refusal."""
    is_well, page = shown_checks(check_status())
    return _json({"ok": is_well, "checks": page["checks"]}, status=200)


def _json(page: dict[str, Any], *, status: int) -> HttpResponse:  # Any: JSON
    return HttpResponse(orjson.dumps(page), content_type="application/json", status=status)


@require_safe
@never_cache
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics page to holders of its tokens; where there are none, DEBUG opens it."""
    if not may_scrape(token_of(request), is_open=settings.DEBUG):
        return HttpResponse(
            UNAUTHORIZED,
            content_type=PLAIN_TEXT,
            status=401,
            headers={"WWW-Authenticate": "Bearer"},
        )
    try:
        page = shared_metrics_page()
    except PageBusy as error:
        return HttpResponse(
            error.message, content_type=PLAIN_TEXT, status=503, headers={"Retry-After": "5"}
        )
    return HttpResponse(page, content_type=CONTENT_TYPE_LATEST)


def plain_server_error(request: HttpRequest) -> HttpResponse:
    """Answer an error that no view handled; the log has the rest.

    Django calls this while it handles the error.
    """
    error = sys.exc_info()[1]
    away = None if error is None else as_unavailable(error)
    if away is not None:
        text = f"Service temporarily unavailable: {away.message}"
        response = HttpResponse(text, content_type=PLAIN_TEXT, status=503, headers=away.headers)
        response._has_been_logged = True  # type: ignore[attr-defined]  # noqa: SLF001 - no traceback
        return response
    return HttpResponse("Internal server error", content_type=PLAIN_TEXT, status=500)
