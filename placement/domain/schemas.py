"""JSON schemas of bodies and queries, by microversion (spec placement, 4).

Each function takes the minor version and returns the schema that holds for it; the schemas are made
once per version band.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from placement.domain.capacity import MAX_INTEGER
from placement.domain.validation import Schema

CLASS_PATTERN: Final = "^[A-Z0-9_]+$"
CUSTOM_PATTERN: Final = "^CUSTOM_[A-Z0-9_]+$"
UUID_PATTERN: Final = "^[0-9a-fA-F-]{36}$"
GROUP_SUFFIX_PATTERN: Final = "^[a-zA-Z0-9_-]{0,64}$"
MAX_RATIO: Final = 3.40282e38

JSONSchema = Mapping[str, Any]  # Any: JSON schema

NAME_255: Final[JSONSchema] = {"type": "string", "minLength": 1, "maxLength": 255}
UUID_FORMAT: Final[JSONSchema] = {"type": "string", "format": "uuid"}
GENERATION: Final[JSONSchema] = {"type": "integer"}
TEXT: Final[JSONSchema] = {"type": "string"}


def _object(properties: JSONSchema, *, required: tuple[str, ...] = ()) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }
    if required:
        schema["required"] = list(required)
    return schema


def _positive(minimum: int) -> JSONSchema:
    return {"type": "integer", "minimum": minimum, "maximum": MAX_INTEGER}


# -- providers


@cache
def create_provider(*, is_nested: bool) -> Schema:
    """Return the schema of a new provider; parents exist since 1.14."""
    properties: dict[str, Any] = {
        "name": {"type": "string", "maxLength": 200},
        "uuid": UUID_FORMAT,
    }
    if is_nested:
        properties["parent_provider_uuid"] = {"anyOf": [UUID_FORMAT, {"type": "null"}]}
    return Schema(_object(properties, required=("name",)))


@cache
def update_provider(*, is_nested: bool) -> Schema:
    """Return the schema of a changed provider; parents exist since 1.14."""
    properties: dict[str, Any] = {"name": {"type": "string", "maxLength": 200}}
    if is_nested:
        properties["parent_provider_uuid"] = {"anyOf": [UUID_FORMAT, {"type": "null"}]}
    return Schema(_object(properties, required=("name",)))


#: Parameters of the provider list and the minor version each came with.
PROVIDER_QUERY_SINCE: Final[Mapping[str, int]] = {
    "name": 0,
    "uuid": 0,
    "member_of": 3,
    "resources": 4,
    "in_tree": 14,
    "required": 18,
}


@cache
def provider_query(minor: int) -> Schema:
    """Return the schema of the query of the provider list."""
    uuids = {"uuid", "in_tree"}
    return Schema(
        _object(
            {
                key: UUID_FORMAT if key in uuids else TEXT
                for key, since in PROVIDER_QUERY_SINCE.items()
                if minor >= since
            }
        )
    )


# -- inventories

INVENTORY_FIELDS: Final[JSONSchema] = {
    "total": _positive(1),
    "reserved": _positive(0),
    "min_unit": _positive(1),
    "max_unit": _positive(1),
    "step_size": _positive(1),
    "allocation_ratio": {"type": "number", "maximum": MAX_RATIO},
}
INVENTORY: Final = _object(INVENTORY_FIELDS, required=("total",))

CREATE_INVENTORY: Final = Schema(
    _object(
        {
            "resource_provider_generation": GENERATION,
            **INVENTORY_FIELDS,
            "resource_class": {"type": "string", "pattern": CLASS_PATTERN},
        },
        required=("resource_class", "total"),
    )
)
UPDATE_INVENTORY: Final = Schema(
    _object(
        {"resource_provider_generation": GENERATION, **INVENTORY_FIELDS},
        required=("resource_provider_generation", "total"),
    )
)
INVENTORY_SET: Final = _object(
    {
        "resource_provider_generation": GENERATION,
        "inventories": {
            "type": "object",
            "patternProperties": {CLASS_PATTERN: INVENTORY},
            "additionalProperties": False,
        },
    },
    required=("resource_provider_generation", "inventories"),
)
REPLACE_INVENTORIES: Final = Schema(INVENTORY_SET)


# -- aggregates, traits, classes

AGGREGATE_LIST: Final[JSONSchema] = {"type": "array", "items": UUID_FORMAT, "uniqueItems": True}
PUT_AGGREGATES_LIST: Final = Schema(AGGREGATE_LIST)
PUT_AGGREGATES: Final = Schema(
    _object(
        {"aggregates": AGGREGATE_LIST, "resource_provider_generation": GENERATION},
        required=("aggregates", "resource_provider_generation"),
    )
)
PUT_TRAITS: Final = Schema(
    _object(
        {
            "traits": {"type": "array", "items": NAME_255},
            "resource_provider_generation": GENERATION,
        },
        required=("traits", "resource_provider_generation"),
    )
)
TRAIT_QUERY: Final = Schema(_object({"name": TEXT, "associated": TEXT}))
CUSTOM_NAME: Final[JSONSchema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": CUSTOM_PATTERN,
}
RESOURCE_CLASS: Final = Schema(_object({"name": CUSTOM_NAME}, required=("name",)))

# -- usages


@cache
def usage_query(*, has_types: bool) -> Schema:
    """Return the schema of the query of project usages; consumer types exist since 1.38."""
    properties: dict[str, Any] = {"project_id": NAME_255, "user_id": NAME_255}
    if has_types:
        properties["consumer_type"] = {
            **NAME_255,
            "anyOf": [{"pattern": "^[A-Z0-9_]+$"}, {"pattern": "^all"}, {"pattern": "^unknown$"}],
        }
    return Schema(_object(properties, required=("project_id",)))


# -- allocations

RESOURCES: Final[JSONSchema] = {
    "type": "object",
    "minProperties": 1,
    "patternProperties": {CLASS_PATTERN: {"type": "integer", "minimum": 1}},
    "additionalProperties": False,
}
ALLOCATIONS: Final = {
    "type": "object",
    "patternProperties": {
        UUID_PATTERN: _object(
            {"generation": GENERATION, "resources": RESOURCES}, required=("resources",)
        )
    },
    "additionalProperties": False,
}
MAPPINGS: Final[JSONSchema] = {
    "type": "object",
    "minProperties": 1,
    "patternProperties": {
        GROUP_SUFFIX_PATTERN: {"type": "array", "minItems": 1, "items": UUID_FORMAT}
    },
    "additionalProperties": False,
}
ALLOCATION_LIST: Final[JSONSchema] = {
    "type": "array",
    "minItems": 1,
    "items": _object(
        {
            "resource_provider": _object({"uuid": UUID_FORMAT}, required=("uuid",)),
            "resources": RESOURCES,
        },
        required=("resource_provider", "resources"),
    ),
}

#: First minor version of each shape of an allocation body, newest first.
ALLOCATION_BANDS: Final = (38, 34, 28, 13, 12, 8, 0)
OWNERS_SINCE: Final = 8
DICT_FORM_SINCE: Final = 12
CONSUMER_GENERATIONS_SINCE: Final = 28
MAPPINGS_SINCE: Final = 34
CONSUMER_TYPES_SINCE: Final = 38


@cache
def _band(minor: int) -> int:
    return next(since for since in ALLOCATION_BANDS if minor >= since)


def _consumer(band: int, *, may_be_empty: bool) -> dict[str, Any]:
    if band < DICT_FORM_SINCE:
        allocations = ALLOCATION_LIST
    elif may_be_empty:
        allocations = ALLOCATIONS
    else:
        allocations = {**ALLOCATIONS, "minProperties": 1}
    properties: dict[str, Any] = {"allocations": allocations}
    required = ["allocations"]
    if band >= OWNERS_SINCE:
        properties |= {"project_id": NAME_255, "user_id": NAME_255}
        required += ["project_id", "user_id"]
    if band >= CONSUMER_GENERATIONS_SINCE:
        properties["consumer_generation"] = {"type": ["integer", "null"]}
        required.append("consumer_generation")
    if band >= MAPPINGS_SINCE:
        properties["mappings"] = MAPPINGS
    if band >= CONSUMER_TYPES_SINCE:
        properties["consumer_type"] = {**NAME_255, "pattern": CLASS_PATTERN}
        required.append("consumer_type")
    return _object(properties, required=tuple(required))


@cache
def _put_allocations(band: int) -> Schema:
    return Schema(_consumer(band, may_be_empty=band >= CONSUMER_GENERATIONS_SINCE))


def put_allocations(minor: int) -> Schema:
    """Return the schema of the allocations of one consumer."""
    return _put_allocations(_band(minor))


def _consumers(band: int) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "patternProperties": {UUID_PATTERN: _consumer(band, may_be_empty=True)},
    }


@cache
def _post_allocations(band: int) -> Schema:
    return Schema({**_consumers(band), "minProperties": 1})


def post_allocations(minor: int) -> Schema:
    """Return the schema of the allocations of several consumers."""
    return _post_allocations(_band(minor))


@cache
def _reshaper(band: int) -> Schema:
    inventories = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": False,
        "patternProperties": {UUID_PATTERN: INVENTORY_SET},
    }
    return Schema(
        _object(
            {"inventories": inventories, "allocations": _consumers(band)},
            required=("inventories", "allocations"),
        )
    )


def reshaper(minor: int) -> Schema:
    """Return the schema of a reshape."""
    return _reshaper(_band(minor))
