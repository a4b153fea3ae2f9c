"""Checking JSON against schemas, with the messages that clients match (spec placement, 2.5).

A compiled validator says yes or no; only for a no does the reference's library phrase the message,
which is part of the contract and takes far longer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final
from uuid import UUID

import jsonschema
import jsonschema_rs
import orjson
from jsonschema.exceptions import best_match

from placement.domain.errors import BadRequest
from placement.domain.querystring import INVALID_QUERY, canonical_uuid

BODY_FORMATS = jsonschema.FormatChecker(formats=())
QUERY_FORMATS = jsonschema.FormatChecker(formats=())


@BODY_FORMATS.checks("uuid")  # type: ignore[untyped-decorator]  # the library has no types
def _is_uuid_like(value: object) -> bool:
    return not isinstance(value, str) or canonical_uuid(value) is not None


@QUERY_FORMATS.checks("uuid")  # type: ignore[untyped-decorator]  # the library has no types
def _is_canonical_uuid(value: object) -> bool:
    return not isinstance(value, str) or _is_dashed(value)


def _is_dashed(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def _pattern(
    validator: Any,  # Any, here and below: the library has no types
    pattern: str,
    value: object,
    schema: object,
) -> Iterator[Any]:
    """Refuse what a pattern takes only because its end may stand before a last line break."""
    yield from jsonschema.Draft202012Validator.VALIDATORS["pattern"](
        validator, pattern, value, schema
    )
    if isinstance(value, str) and value.endswith("\n") and re.search(pattern, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


#: The reference's library, whose messages clients match.
InWords: Final[Any] = jsonschema.validators.extend(
    jsonschema.Draft202012Validator, {"pattern": _pattern}
)
TOO_DEEP: Final = "nested too deeply"


class Schema:
    """A JSON schema of a request body or of a query."""

    def __init__(self, schema: Mapping[str, Any]) -> None:  # Any: JSON schema
        self.schema = dict(schema)

    @cached_property
    def _fast(self) -> jsonschema_rs.Validator:
        return jsonschema_rs.validator_for(self.schema, validate_formats=True)

    @cached_property
    def _in_words(self) -> Mapping[bool, Any]:  # Any: the library has no types
        return {
            True: InWords(self.schema, format_checker=QUERY_FORMATS),
            False: InWords(self.schema, format_checker=BODY_FORMATS),
        }

    def violation(self, document: object, *, is_query: bool) -> str | None:
        """Return in the reference's words how a document breaks the schema, or ``None``."""
        if self._fast.is_valid(document):
            return None
        try:
            error = best_match(self._in_words[is_query].iter_errors(document))
            return None if error is None else str(error)
        except RecursionError:  # words show what was sent, however deep that is
            return TOO_DEEP

    def load(self, body: bytes) -> Any:  # Any: shaped as the schema says
        """Return the document of a request body.

        Raises:
            BadRequest: the body is no JSON, or breaks the schema.
        """
        document = parsed_json(body)
        violation = self.violation(document, is_query=False)
        if violation is not None:
            raise BadRequest(f"JSON does not validate: {violation}")
        return document

    def check_query(self, values: Mapping[str, str]) -> None:
        """Check the parameters of a query, one value each.

        Raises:
            BadRequest: a parameter is unknown, missing or has no allowed value.
        """
        violation = self.violation(dict(values), is_query=True)
        if violation is not None:
            raise BadRequest(f"{INVALID_QUERY}{violation}")


def parsed_json(body: bytes) -> object:
    """Return what a body says.

    Raises:
        BadRequest: it is no JSON; numbers that are none (``NaN``) and lone surrogates are not.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"Malformed JSON: {_malformation(body) or error}") from error


def _malformation(body: bytes) -> str:
    try:
        json.loads(body)
    except ValueError as error:
        return str(error)
    except RecursionError:
        return TOO_DEEP
    return ""
