from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from placement.domain import schemas
from placement.domain.errors import BadRequest, error_body
from placement.domain.validation import Schema, parsed_json

U = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
OWNER = {"project_id": "p", "user_id": "u"}
AMOUNTS = {"resources": {"VCPU": 1}}


@pytest.mark.parametrize(
    ("schema", "document", "fragments"),
    [
        pytest.param(
            schemas.UPDATE_INVENTORY,
            {"resource_provider_generation": 1},
            ["'total' is a required property", "Failed validating 'required' in schema"],
            id="missing key",
        ),
        pytest.param(
            schemas.UPDATE_INVENTORY,
            {"resource_provider_generation": 1, "total": 1, "x": 1},
            ["Additional properties are not allowed", "'x' was unexpected"],
            id="unknown key",
        ),
        pytest.param(
            schemas.put_allocations(12),
            {"allocations": {"bad": AMOUNTS}, **OWNER},
            ["does not match any of the regexes", "^[0-9a-fA-F-]{36}$"],
            id="key matches no pattern",
        ),
        pytest.param(
            schemas.UPDATE_INVENTORY,
            {"resource_provider_generation": 1, "total": 0},
            [
                "0 is less than the minimum of 1",
                "Failed validating 'minimum' in schema['properties']['total']",
            ],
            id="too small",
        ),
        pytest.param(
            schemas.UPDATE_INVENTORY,
            {"resource_provider_generation": 1, "total": 1 << 31},
            ["Failed validating 'maximum'"],
            id="too big",
        ),
        pytest.param(
            schemas.create_provider(is_nested=True),
            {"name": "n" * 201},
            ["Failed validating 'maxLength'"],
            id="too long",
        ),
        pytest.param(
            schemas.put_allocations(8),
            {"allocations": [], **OWNER},
            ["[] should be non-empty"],
            id="empty list",
        ),
        pytest.param(
            schemas.PUT_AGGREGATES,
            {"aggregates": 1, "resource_provider_generation": 1},
            ["is not of type 'array'"],
            id="wrong type",
        ),
        pytest.param(
            schemas.PUT_AGGREGATES_LIST,
            ["bogus"],
            ["is not a 'uuid'", "Failed validating 'format'"],
            id="uuid",
        ),
        pytest.param(
            schemas.PUT_AGGREGATES_LIST, [U, U], ["has non-unique elements"], id="repeated item"
        ),
        pytest.param(
            schemas.CREATE_INVENTORY,
            {"resource_class": "instance", "total": 1},
            ["'instance' does not match '^[A-Z0-9_]+$'", "Failed validating 'pattern'"],
            id="pattern",
        ),
        pytest.param(
            schemas.REPLACE_INVENTORIES,
            {"resource_provider_generation": 1, "inventories": {"lower": 1}},
            ["does not match any of the regexes"],
            id="class in lower case",
        ),
    ],
)
def test_violations_are_told_in_the_words_of_the_reference(
    schema: Schema, document: object, fragments: list[str]
) -> None:
    with pytest.raises(BadRequest, match="JSON does not validate: ") as caught:
        schema.load(orjson.dumps(document))
    for fragment in fragments:
        assert fragment in caught.value.message


def consumer(minor: int, **changed: Any) -> dict[str, Any]:
    """Return a valid body of a version, with some keys changed; ``...`` leaves one out."""
    body: dict[str, Any] = {"allocations": {U: AMOUNTS}}
    if minor < 12:
        body["allocations"] = [{"resource_provider": {"uuid": U}, **AMOUNTS}]
    if minor >= 8:
        body |= OWNER
    if minor >= 28:
        body["consumer_generation"] = None
    if minor >= 38:
        body["consumer_type"] = "INSTANCE"
    body |= changed
    return {key: value for key, value in body.items() if value is not ...}


@pytest.mark.parametrize("minor", range(40))
def test_an_allocation_body_is_valid_in_its_version_only(minor: int) -> None:
    schema = schemas.put_allocations(minor)
    schema.load(orjson.dumps(consumer(minor)))
    for other in (0, 8, 12, 28, 38):
        if consumer(other).keys() != consumer(minor).keys() or (other < 12) != (minor < 12):
            with pytest.raises(BadRequest):
                schema.load(orjson.dumps(consumer(other)))


@pytest.mark.parametrize(
    ("minor", "changed", "is_valid"),
    [
        pytest.param(12, {"allocations": {}}, False, id="1.12 empty"),
        pytest.param(27, {"allocations": {}}, False, id="1.27 empty"),
        pytest.param(28, {"allocations": {}}, True, id="1.28 empty"),
        pytest.param(28, {"consumer_generation": 2.0}, True, id="a whole float is an integer"),
        pytest.param(28, {"consumer_generation": "1"}, False, id="a text is no generation"),
        pytest.param(33, {"mappings": {"1": [U]}}, False, id="1.33 mappings"),
        pytest.param(34, {"mappings": {"1": [U], "": [U]}}, True, id="1.34 mappings"),
        pytest.param(34, {"mappings": {}}, False, id="no mapping"),
        pytest.param(34, {"mappings": {"1": []}}, False, id="empty mapping"),
        pytest.param(34, {"mappings": {"1": ["bogus"]}}, False, id="mapping to no uuid"),
        pytest.param(38, {"consumer_type": "instance"}, False, id="type in lower case"),
        pytest.param(12, {"allocations": {U: {**AMOUNTS, "generation": 3}}}, True, id="generation"),
        pytest.param(12, {"allocations": {U: {"resources": {}}}}, False, id="no resources"),
        pytest.param(12, {"allocations": {U: {"resources": {"VCPU": 0}}}}, False, id="zero"),
        pytest.param(8, {"project_id": ""}, False, id="empty project"),
    ],
)
def test_allocation_bodies_at_the_edges(
    minor: int, changed: dict[str, Any], is_valid: bool
) -> None:
    document = consumer(minor, **changed)
    assert (schemas.put_allocations(minor).violation(document, is_query=False) is None) is is_valid


@pytest.mark.parametrize("minor", [13, 27, 28, 34, 38])
def test_many_consumers_may_give_back_all(minor: int) -> None:
    schemas.post_allocations(minor).load(orjson.dumps({U: consumer(minor, allocations={})}))
    with pytest.raises(BadRequest):
        schemas.post_allocations(minor).load(b"{}")


@pytest.mark.parametrize(
    ("key", "since"),
    [
        ("name", 0),
        ("uuid", 0),
        ("member_of", 3),
        ("resources", 4),
        ("in_tree", 14),
        ("required", 18),
    ],
)
def test_parameters_of_the_provider_list_came_one_by_one(key: str, since: int) -> None:
    value = U if key in {"uuid", "in_tree"} else "x"
    schemas.provider_query(since).check_query({key: value})
    if since:
        with pytest.raises(BadRequest, match=f"'{key}' was unexpected"):
            schemas.provider_query(since - 1).check_query({key: value})


@pytest.mark.parametrize("spelling", [U.upper(), U.replace("-", ""), f"{{{U}}}"])
def test_bodies_take_spellings_of_a_uuid_that_queries_refuse(spelling: str) -> None:
    body = {"name": "n", "uuid": spelling}
    schemas.create_provider(is_nested=False).load(orjson.dumps(body))
    if spelling != U.upper():
        with pytest.raises(BadRequest, match="is not a 'uuid'"):
            schemas.provider_query(0).check_query({"uuid": spelling})


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b'{"a": NaN}', b'"\\ud800"', b"{'a': 1}"],
    ids=["empty", "open", "no utf-8", "not a number", "lone surrogate", "single quotes"],
)
def test_bodies_that_are_no_json(body: bytes) -> None:
    with pytest.raises(BadRequest, match="Malformed JSON: "):
        parsed_json(body)


@pytest.mark.parametrize(
    ("make", "document"),
    [
        (
            lambda: schemas.usage_query(has_types=True),
            {"project_id": "p", "consumer_type": "ALL_X"},
        ),
        (lambda: schemas.usage_query(has_types=True), {"project_id": "p", "consumer_type": "all"}),
        (
            lambda: schemas.usage_query(has_types=True),
            {"project_id": "p", "consumer_type": "unknown"},
        ),
    ],
)
def test_consumer_types_of_usages(make: Callable[[], Schema], document: dict[str, str]) -> None:
    make().check_query(document)
    with pytest.raises(BadRequest):
        make().check_query({**document, "consumer_type": "bogus-type"})
    with pytest.raises(BadRequest, match="'consumer_type' was unexpected"):
        schemas.usage_query(has_types=False).check_query(document)


@pytest.mark.parametrize(("minor", "has_code"), [(None, False), (22, False), (23, True)])
def test_codes_appear_since_1_23(minor: int | None, has_code: bool) -> None:
    body: dict[str, Any] = error_body(BadRequest("why"), minor=minor, request_id="req-1")
    (error,) = body["errors"]
    assert error["status"] == 400
    assert error["title"] == "Bad Request"
    assert error["request_id"] == "req-1"
    assert "why" in error["detail"]
    assert ("code" in error) is has_code
