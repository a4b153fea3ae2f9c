from __future__ import annotations

import pytest

from commitments.api.unknown_fields import (
    CAPACITY_REQUEST,
    CHANGE_REQUEST,
    QUOTA_REQUEST,
    USAGE_REQUEST,
    Known,
    count_unknown_fields,
    unknown_fields,
)
from tests.api.liquid_client import LiquidClient
from tests.factories import make_group

CASES: dict[str, tuple[Known, object, list[str]]] = {
    "capacity": (
        CAPACITY_REQUEST,
        {
            "allAZs": ["a"],
            "demandByResource": {
                "r": {"overcommitFactor": 1, "perAZ": {"a": {"usage": 1, "odd": 1}}, "odd": {}}
            },
            "odd": {"more": 1},
        },
        ["demandByResource.r.perAZ.a.odd", "demandByResource.r.odd", "odd"],
    ),
    "usage": (
        USAGE_REQUEST,
        {
            "allAZs": [],
            "serializedState": {"any": {"thing": [1]}},
            "projectMetadata": {"uuid": "u", "name": "n", "domain": {"uuid": "d", "odd": 1}},
        },
        ["projectMetadata.domain.odd"],
    ),
    "quota": (
        QUOTA_REQUEST,
        {"resources": {"r": {"quota": 1, "perAZ": {"a": {"quota": 1, "odd": 1}}}}},
        ["resources.r.perAZ.a.odd"],
    ),
    "change": (
        CHANGE_REQUEST,
        {
            "az": "a",
            "dryRun": False,
            "infoVersion": 1,
            "byProject": {
                "p": {"byResource": {"r": {"commitments": [{"uuid": "u"}, {"odd": None}]}}}
            },
        },
        ["byProject.p.byResource.r.commitments[1].odd"],
    ),
    "wrong shapes": (CHANGE_REQUEST, {"byProject": [1], "az": {}}, []),
    "no object": (USAGE_REQUEST, 5, []),
}


@pytest.mark.parametrize(("known", "content", "unknown"), CASES.values(), ids=list(CASES))
def test_unknown_fields_are_found_by_path(
    known: Known, content: object, unknown: list[str]
) -> None:
    assert list(unknown_fields(content, known)) == unknown
    assert count_unknown_fields(content, known) == len(unknown)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff"], ids=["empty", "cut off", "no text"])
def test_body_that_is_not_json_has_no_fields(body: bytes) -> None:
    assert count_unknown_fields(body, USAGE_REQUEST) == 0


@pytest.mark.django_db
def test_request_with_unknown_fields_is_answered_like_one_without(liquid: LiquidClient) -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    plain = liquid.send("POST", liquid.usage(), {"allAZs": ["az-a"]})
    odd = liquid.send("POST", liquid.usage(), {"allAZs": ["az-a"], "odd": {"more": [1]}})
    assert odd.status_code == plain.status_code == 200
    assert odd.content == plain.content
