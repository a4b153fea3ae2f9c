"""``/api/schema`` and ``/api/docs``: the API described, for programs and for people.

Both are public, as the same pages of the manual are: nothing in them is of this installation.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from django.http import HttpResponse
from django.shortcuts import render
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.request import Request

from console.api.views import tagged
from core.api import ProblemView
from journal.middleware import ADMIN_POLICY, POLICY_HEADER

DOCUMENT: Final = Path(__file__).with_name("openapi.yaml")
YAML: Final = "application/yaml"


class PublicView(ProblemView):
    """A document that nobody has to show a token for."""

    http_method_names = ["get", "head"]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:  # Any: DRF's
        """Look at the method alone.

        Raises:
            MethodNotAllowed: it is none that reads.
        """
        if str(request.method).lower() not in self.http_method_names:
            raise MethodNotAllowed(str(request.method))


class SchemaView(PublicView):
    """``GET /api/schema``."""

    path_label = "/api/schema"

    def get(self, _: Request) -> HttpResponse:
        """Return the OpenAPI document."""
        return tagged(self.http_request, HttpResponse(_content(), content_type=YAML))


class DocsView(PublicView):
    """``GET /api/docs``."""

    path_label = "/api/docs"

    def get(self, _: Request) -> HttpResponse:
        """Return a page that shows the document; it loads nothing from elsewhere."""
        page = render(self.http_request, "api_docs.html")
        page[POLICY_HEADER] = ADMIN_POLICY
        return page


@cache
def _content() -> bytes:
    return DOCUMENT.read_bytes()
