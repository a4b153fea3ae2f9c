"""Requests made from the document of ``/api/v1``: every answer of a list is documented, no 500."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from config.wsgi import application
from console.api.urls import LISTS
from console.api.views import ReadViewSet
from tests.api.liquid_client import VIEWER
from tests.console.api.conftest import key_field, page
from tests.fuzz.conftest import bounded, without_closing_connections

pytestmark = pytest.mark.django_db

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 8


def served(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    answer: Iterable[bytes] = application(environ, start_response)
    return answer


SCHEMA = schemathesis.openapi.from_wsgi("/api/schema", served)


def operation_of(path: str) -> Any:
    found = (known.ok() for known in SCHEMA.get_all_operations() if isinstance(known, Ok))
    return next(known for known in found if known.label == f"GET {path}")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("view", LISTS, ids=lambda view: view.path_label)
def test_any_question_to_a_list_is_answered_as_documented(
    region: None, view: type[ReadViewSet], mode: GenerationMode
) -> None:
    check(operation_of(view.path_label), mode, [])


@pytest.mark.parametrize("view", LISTS, ids=lambda view: view.path_label)
def test_any_key_is_answered_as_documented(region: None, view: type[ReadViewSet]) -> None:
    keys = [row[key_field(view)] for row in page(view.path_label)["items"]]
    check(operation_of(f"{view.path_label}/{{key}}"), GenerationMode.POSITIVE, keys)


def check(operation: Any, mode: GenerationMode, keys: list[Any]) -> None:
    """Send generated requests; of those for one row, half name one that there is."""
    known = st.none() | st.sampled_from(keys) if keys else st.none()
    statuses = set()

    @bounded(EXAMPLES)
    @given(case=operation.as_strategy(generation_mode=mode), key=known)
    def send(case: Any, key: Any) -> None:
        if key is not None:
            case.path_parameters["key"] = key
        response = case.call(headers={"X-Auth-Token": VIEWER})
        case.validate_response(response, checks=CHECKS)
        statuses.add(response.status_code)

    with without_closing_connections():
        send()
    assert keys or statuses & {200, 304, 400}
