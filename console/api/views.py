"""Lists and single rows over HTTP, and the answer to paths that lead nowhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers
from django.utils.http import parse_etags
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.serializers import ModelSerializer
from rest_framework.viewsets import ViewSetMixin

from console.api.filters import Filters, StrictFilterBackend, unknown_parameter
from console.api.paging import KeysetPagination
from core.api import InvalidCall, ProblemView, json_answer
from core.stored_text import check_text, shortened
from journal.auth import RULE_API_READ, TOKEN_HEADER
from journal.errors import InvalidInput

LONGEST_KEY = 255


class NothingThere(InvalidCall):
    """There is no such path, or no such object."""

    code = "not_found"
    status = 404


class RowSerializer(ModelSerializer[Any]):
    """A row as it is told; nothing is ever written through it."""

    def get_fields(self) -> Any:  # Any: DRF's mapping of fields
        """Return the fields, all of them read only."""
        fields = super().get_fields()
        for field in fields.values():
            field.read_only = True
        return fields


class ReadViewSet(ViewSetMixin, ProblemView, GenericAPIView[Any]):
    """``GET`` of a list and of one of its rows, which ``lookup_field`` names in paths.

    Attributes:
        orderings: Name to columns, see :class:`console.api.paging.Order`; an index serves each.
        default_ordering: The order when none is asked for.
        written: What is written to one row: method to the name of what does it.
    """

    rule = RULE_API_READ
    http_method_names = ["get", "head"]
    filter_backends = [StrictFilterBackend]
    pagination_class = KeysetPagination
    lookup_url_kwarg = "key"
    serializer_class: type[RowSerializer]
    filterset_class: type[Filters]
    orderings: ClassVar[Mapping[str, tuple[str, ...]]]
    default_ordering: ClassVar[str]
    written: ClassVar[Mapping[str, str]] = {}

    def list(self, request: Request) -> HttpResponse:
        """Return a page of rows."""
        pages = KeysetPagination()
        rows = pages.paginate_queryset(self.filter_queryset(self.get_queryset()), request, self)
        items = self.serializer_class(rows, many=True).data
        return tagged_answer(self.http_request, {"items": items, "next": pages.next_page})

    def retrieve(self, request: Request, key: object) -> HttpResponse:
        """Return one row.

        Raises:
            NothingThere: there is none of this name.
        """
        for name in request.query_params:
            raise unknown_parameter(name, [])
        row = self._row(key)
        if row is None:
            raise NothingThere("not found", f"{self.path_label} has no {shortened(str(key))}")
        return tagged_answer(self.http_request, self.serializer_class(row).data)

    @classmethod
    def key_type(cls) -> str:
        """Return Django's name for what keys look like in paths."""
        return {"pk": "int", "uuid": "uuid"}.get(str(cls.lookup_field), "str")

    def _row(self, key: object) -> Model | None:
        try:
            check_text(str(key), path="key", max_length=LONGEST_KEY)
        except InvalidInput:
            return None
        row: Model | None = self.get_queryset().filter(**{self.lookup_field: key}).first()
        return row


class LogViewSet(ReadViewSet):
    """A list to which rows are only added; the newest come first."""

    lookup_field = "pk"
    orderings = {"created": ("id",)}
    default_ordering = "-created"


class UnknownPathView(ProblemView):
    """Every path below ``/api`` that there is not."""

    rule = RULE_API_READ
    path_label = "/api"
    checks_method_first = False
    http_method_names = []

    @property
    def default_response_headers(self) -> dict[str, str]:
        """Name no methods: there is nothing that they could be asked of."""
        return {}

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Any:  # Any: DRF's
        """Say that there is nothing.

        Raises:
            NothingThere: always.
        """
        raise NothingThere("not found", f"there is no {shortened(request.path)}")


def tagged_answer(request: HttpRequest, document: object) -> HttpResponse:
    """Return a document as JSON, see :func:`tagged`."""
    return tagged(request, json_answer(document))


def tagged(request: HttpRequest, answer: HttpResponse) -> HttpResponse:
    """Return an answer with the tag of its content, or 304 to who has it already."""
    tag = f'W/"{hashlib.blake2b(answer.content, digest_size=16).hexdigest()}"'
    if _has(request, tag):
        answer = HttpResponse(status=304)
    answer["ETag"] = tag
    answer["Cache-Control"] = "private, no-cache"
    patch_vary_headers(answer, (TOKEN_HEADER, "Authorization"))
    return answer


def _has(request: HttpRequest, tag: str) -> bool:
    kept = parse_etags(request.headers.get("If-None-Match", ""))
    return "*" in kept or tag.removeprefix("W/") in {known.removeprefix("W/") for known in kept}
