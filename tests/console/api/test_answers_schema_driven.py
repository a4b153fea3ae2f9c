"""Requests made from the document of ``/api/v1`` to what is no list: documented answers, no 500."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from pydantic import SecretStr
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from console.api.urls import LISTS
from journal.conf import AccessToken
from tests.console.api.test_schema_driven import CHECKS, SCHEMA
from tests.fuzz.conftest import bounded, without_closing_connections

pytestmark = pytest.mark.django_db

EXAMPLES = 12
CALLER = "operator-token-0123456789"
OPERATOR = AccessToken(
    token=SecretStr(CALLER),
    name="operator",
    roles=("admin", "cloud_resource_admin"),
)
FOUND = [known.ok() for known in SCHEMA.get_all_operations() if isinstance(known, Ok)]
OF_LISTS = {f"GET {view.path_label}{key}" for view in LISTS for key in ("", "/{key}")}
ANSWERS = [operation for operation in FOUND if operation.label not in OF_LISTS]


def test_lists_and_answers_are_all_that_is_documented() -> None:
    assert {operation.label for operation in FOUND} >= OF_LISTS
    assert len(ANSWERS) == len(FOUND) - len(OF_LISTS)
    assert {operation.path.split("/")[3] for operation in ANSWERS} == {
        "commitments",
        "explanations",
        "failover",
        "hosts",
        "placement",
        "scheduling",
    }


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", ANSWERS, ids=lambda operation: operation.label)
def test_any_question_is_answered_as_documented(
    region: None, settings: Any, operation: Any, mode: GenerationMode
) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"tokens": (OPERATOR,)})
    statuses = set()

    @bounded(EXAMPLES)
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        response = case.call(headers={"X-Auth-Token": CALLER})
        case.validate_response(response, checks=CHECKS)
        statuses.add(response.status_code)

    with without_closing_connections():
        send()
    assert statuses - {406}
    assert not statuses & {401, 403}
