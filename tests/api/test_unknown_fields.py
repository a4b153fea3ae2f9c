from __future__ import annotations

import pytest

from commitments.api.parsing import (
    CapacityRequest,
    ChangeBody,
    QuotaBody,
    UsageRequest,
    parse_change_request,
)
from core.json_bodies import Body, unknown_fields
from tests.api.liquid_client import LiquidClient
from tests.factories import make_group

CASES: dict[str, tuple[type[Body], object, list[str]]] = {
    "capacity": (
        CapacityRequest,
        {"allAZs": ["a"], "demandByResource": {"r": {"odd": {}}}, "odd": {"more": 1}},
        ["odd"],
    ),
    "usage": (
        UsageRequest,
        {"serializedState": {"any": {"thing": [1]}}, "projectMetadata": {"odd": 1}, "allAZ": []},
        ["allAZ"],
    ),
    "quota": (
        QuotaBody,
        {
            "resources": {"r": {"quota": 1, "perAZ": {"a": {"quota": 1, "odd": 1}}}},
            "projectMetadata": {"uuid": "u", "name": "n", "domain": {"uuid": "d", "odd": 1}},
        },
        ["resources.r.perAZ.a.odd", "projectMetadata.domain.odd"],
    ),
    "change": (
        ChangeBody,
        {
            "az": "a",
            "dryRun": False,
            "infoVersion": 1,
            "byProject": {"p": {"byResource": {"r": {"commitments": [{"uuid": "u"}, {"odd": 1}]}}}},
        },
        ["byProject.p.byResource.r.commitments[1].odd"],
    ),
}


@pytest.mark.parametrize(("model", "content", "unknown"), CASES.values(), ids=list(CASES))
def test_unknown_fields_are_found_by_path(
    model: type[Body], content: object, unknown: list[str]
) -> None:
    assert list(unknown_fields(model.model_validate(content, extra="allow"))) == unknown


@pytest.mark.django_db
def test_request_with_unknown_fields_is_answered_like_one_without(liquid: LiquidClient) -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    plain = liquid.send("POST", liquid.usage(), {"allAZs": ["az-a"]})
    odd = liquid.send("POST", liquid.usage(), {"allAZs": ["az-a"], "odd": {"more": [1]}})
    assert odd.status_code == plain.status_code == 200
    assert odd.content == plain.content


def test_unknown_fields_are_not_taken_for_those_that_they_are_named_as() -> None:
    asked = parse_change_request(
        b'{"az": "a", "byProject": {"p": {"byResource": {"r": {"changeset": 1, "net_units": 1,'
        b' "commitments": [{"amount": 2, "amount_units": 3, "more": 1}]}}}}}'
    )
    changeset = asked.by_project["p"].by_resource["r"]
    assert changeset.commitments[0].amount_units == 2
