from __future__ import annotations

import pytest
from pydantic import ValidationError

from core.json_bodies import Body, Elements, Id, Members, Moment, Name, Unsigned, read_body
from journal.errors import InvalidInput


class _Part(Body):
    name: Name = ""
    count: Unsigned = 0


class _Whole(Body):
    parts: Elements[_Part] = ()
    by_id: Members[Id, _Part] = {}
    texts: Elements[Id] = ()
    at: Moment = None
    is_dry: bool = False


def test_null_and_missing_are_zero_values_wherever_they_stand() -> None:
    assert read_body(_Whole, b"null") == read_body(_Whole, b"{}") == _Whole()
    read = read_body(
        _Whole, b'{"parts": [null, {"name": null}], "by_id": {"a": null}, "texts": [null, "x"]}'
    )
    assert read == _Whole(parts=(_Part(), _Part()), by_id={"a": _Part()}, texts=("", "x"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "body: must be an object"),
        (b"{", "body: is not valid JSON: "),
        (b'{"parts": {}}', "parts: must be a list"),
        (b'{"parts": [{}, 1]}', "parts[1]: must be an object"),
        (b'{"parts": [{"count": 1.0}]}', "parts[0].count: must be an integer from 0 to "),
        (b'{"parts": [{"count": true}]}', "parts[0].count: must be an integer from 0 to "),
        (b'{"parts": [{"count": 99999999999999999999}]}', "parts[0].count: must be an integer"),
        (b'{"by_id": []}', "by_id: must be an object"),
        (b'{"by_id": {"b": {"name": 1}}}', "by_id.b.name: must be a string"),
        (b'{"by_id": {"a\\n": 1}}', "by_id.a?: must be an object"),
        (
            b'{"by_id": {"' + b"x" * 65 + b'": {}}}',
            f"by_id.{'x' * 64}…: the name: has 65 characters, at most 64 are allowed",
        ),
        (
            b'{"by_id": {"\\u0000": {}}}',
            "by_id.?: the name: contains a character that cannot be stored",
        ),
        (
            b'{"texts": ["' + b"x" * 65 + b'"]}',
            "texts[0]: has 65 characters, at most 64 are allowed",
        ),
        (b'{"texts": ["\\u0000"]}', "texts[0]: contains a character that cannot be stored"),
        (b'{"at": "now"}', "at: must be a time such as 2026-03-01T12:00:00Z"),
        (b'{"at": "2026-02-30T00:00:00Z"}', "at: is not a time between the years 1 and 9999"),
        (b'{"is_dry": 1}', "is_dry: must be true or false"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(body: bytes, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_body(_Whole, body)
    assert refused.value.message.startswith(words)
    assert words.startswith(str(refused.value.facts["field"]) or "body")


@pytest.mark.parametrize(
    "content",
    [
        {"texts": [1] * 1000},
        {"parts": [{"count": -1}] * 1000},
        {"by_id": {str(number): 1 for number in range(1000)}},
    ],
)
def test_what_is_wrong_a_thousand_times_is_looked_at_once(content: object) -> None:
    with pytest.raises(ValidationError) as refused:
        _Whole.model_validate(content)
    assert refused.value.error_count() == 1
