"""``GET /api/v1/commitments/focus``: a month of commitments as FOCUS rows (docs/focus.md)."""

from __future__ import annotations

from itertools import chain

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request

from commitments.policies import EXPORT_FOCUS
from commitments.selectors.focus import ChargeSpan, focus_file, month_start
from core.api import ProblemView
from journal.errors import InvalidInput

PARAMETERS = ("month", "span")


class FocusView(ProblemView):
    """Streams the file, a charge period at a time."""

    rule = EXPORT_FOCUS
    http_method_names = ["get"]
    path_label = "/api/v1/commitments/focus"

    def get(self, request: Request) -> HttpResponseBase:
        """Return the file as CSV.

        Raises:
            InvalidInput: a parameter is unknown, missing, given twice, or cannot be used.
        """
        given = {name: request.query_params.getlist(name) for name in request.query_params}
        for name, values in given.items():
            if name not in PARAMETERS:
                raise InvalidInput(f"{name}: is not known; known are month, span", field=name)
            if len(values) > 1:
                raise InvalidInput(f"{name}: is given {len(values)} times", field=name)
        month = month_start(request.query_params.get("month", ""))
        span = request.query_params.get("span", ChargeSpan.DAY.value)
        if span not in set(ChargeSpan):
            raise InvalidInput("span: must be hour or day", field="span")
        lines = focus_file(month, ChargeSpan(span))
        first = next(lines)
        answer = StreamingHttpResponse(chain((first,), lines), content_type="text/csv")
        answer["Content-Disposition"] = f'attachment; filename="focus-{month:%Y-%m}.csv"'
        answer["Cache-Control"] = "private, no-store"
        return answer
