"""Requests made from our OpenAPI document: answers are documented and never a 500."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import given
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
from tests.fuzz.conftest import bounded, rolled_back
from tests.fuzz.region import Known, current_version
from tests.ledger import assert_ledger_holds, fingerprint

pytestmark = pytest.mark.django_db

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "api" / "liquid.openapi.yaml"
DOCUMENT_PATH = "/openapi.yaml"
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PROBES_THAT_MAY_FAIL = {"GET /readyz"}
OPERATIONS = (
    "GET /commitments/v1/info",
    "POST /commitments/v1/report-capacity",
    "POST /commitments/v1/projects/{project_id}/report-usage",
    "PUT /commitments/v1/projects/{project_id}/quota",
    "POST /commitments/v1/change-commitments",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
)


def with_document(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve the application, and the document that describes it."""
    if environ["PATH_INFO"] == DOCUMENT_PATH:
        start_response("200 OK", [("Content-Type", "application/yaml")])
        return [DOCUMENT.read_bytes()]
    answer: Iterable[bytes] = application(environ, start_response)
    return answer


SCHEMA = schemathesis.openapi.from_wsgi(DOCUMENT_PATH, with_document)


def test_every_documented_operation_is_fuzzed() -> None:
    found = [operation for operation in SCHEMA.get_all_operations() if isinstance(operation, Ok)]
    assert {operation.ok().label for operation in found} == set(OPERATIONS)


def examples_of(label: str) -> int:
    """Return how many examples an operation gets: many where there is a body to get wrong."""
    return 30 if label.startswith("GET") else 120


def has_wrong_input(label: str) -> bool:
    """Whether there is anything to send that the document does not allow."""
    return "/commitments/" in label


MODES = [
    pytest.param(label, mode, id=f"{label} {mode.value}")
    for label in OPERATIONS
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or has_wrong_input(label)
]


@pytest.mark.parametrize(("label", "mode"), MODES)
def test_answer_is_documented_and_only_acceptance_changes_rows(
    region: tuple[Known, ...], label: str, mode: GenerationMode
) -> None:
    operation = SCHEMA.find_operation_by_label(label)
    assert operation is not None
    assert region
    is_change = label.endswith("change-commitments") and mode is GenerationMode.POSITIVE
    before, version = fingerprint(), current_version()
    checks = CHECKS if label in PROBES_THAT_MAY_FAIL else [*CHECKS, not_a_server_error]

    @bounded(examples_of(label))
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        with rolled_back():
            if is_change and isinstance(case.body, dict) and "infoVersion" in case.body:
                case.body["infoVersion"] = version
            response = case.call()
            case.validate_response(response, checks=checks)
            if response.status_code >= 300:
                assert fingerprint() == before
            assert_ledger_holds()

    send()
