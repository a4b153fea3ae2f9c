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

pytestmark = pytest.mark.django_db(transaction=True)

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs" / "api"
NAMES = ("liquid", "commitments", "scheduler")
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
    "GET /livez",
    "GET /healthz",
    "GET /statusz",
    "GET /readyz",
    "GET /metrics",
    "GET /api/v1/explanations/commitments/{commitment_uuid}",
    "GET /api/v1/commitments/focus",
    "POST /api/v1/commitments/what-if",
    "POST /scheduler/nova/external",
    "POST /api/v1/scheduling/explain",
)
READ_ONLY = {"POST /api/v1/commitments/what-if", "POST /api/v1/scheduling/explain"}


def with_document(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Serve the application, and the documents that describe it."""
    name = environ["PATH_INFO"].removeprefix("/openapi/")
    if name in NAMES:
        start_response("200 OK", [("Content-Type", "application/yaml")])
        return [(DOCUMENTS / f"{name}.openapi.yaml").read_bytes()]
    answer: Iterable[bytes] = application(environ, start_response)
    return answer


SCHEMAS = [schemathesis.openapi.from_wsgi(f"/openapi/{name}", with_document) for name in NAMES]


def documented() -> dict[str, Any]:
    """Return every operation of the documents by method and path."""
    found = [operation for schema in SCHEMAS for operation in schema.get_all_operations()]
    return {
        operation.ok().label: operation.ok() for operation in found if isinstance(operation, Ok)
    }


def test_every_documented_operation_is_fuzzed() -> None:
    assert set(documented()) == set(OPERATIONS)


def examples_of(label: str) -> int:
    """Return how many examples an operation gets: many where there is a body to get wrong."""
    if label.startswith("GET"):
        return 10
    return 20 if "/api/v1/" in label or "/scheduler/" in label else 40


def has_wrong_input(label: str) -> bool:
    """Whether there is anything to send that the document does not allow."""
    return label.startswith(("POST", "PUT")) or "/commitments/" in label


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
    operation = documented()[label]
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
            if response.status_code >= 300 or label in READ_ONLY:
                assert fingerprint() == before
            assert_ledger_holds()

    send()
