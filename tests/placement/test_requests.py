"""Placement's request object says what Django's own says, whichever of it is asked first."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from django.core.handlers.wsgi import WSGIRequest

from placement.api.rendering import PiecesResponse, empty_answer, json_answer, pairs_of, put_headers
from placement.api.requests import LeanRequest
from placement.wsgi import placement_first

ENVIRONS: dict[str, dict[str, Any]] = {
    "read": {},
    "root": {"PATH_INFO": ""},
    "below": {"SCRIPT_NAME": "/cloud", "PATH_INFO": "/placement/traits"},
    "two slashes": {"PATH_INFO": "//placement//x"},
    "unicode": {"PATH_INFO": "/placement/traits/é".encode().decode("latin-1")},
    "broken": {"PATH_INFO": "/placement/traits/\xff"},
    "write": {"REQUEST_METHOD": "put", "CONTENT_TYPE": "application/json", "CONTENT_LENGTH": "4"},
    "charset": {"CONTENT_TYPE": "text/plain; charset=latin-1", "CONTENT_LENGTH": "2"},
    "long": {"CONTENT_LENGTH": "400"},
}
FACTS = (
    *("path", "path_info", "method", "scheme", "content_type", "content_params", "encoding"),
    *("resolver_match", "body", "GET", "META"),
)


def environ(**fields: Any) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": "GET", "PATH_INFO": "/placement/traits", "QUERY_STRING": "a=1&a=2",
        "SCRIPT_NAME": "", "SERVER_NAME": "h", "SERVER_PORT": "80", "HTTP_HOST": "localhost",
        "wsgi.url_scheme": "http", "wsgi.input": BytesIO(b'{"a"'), **fields,
    }  # fmt: skip


def facts_of(request: WSGIRequest, order: tuple[str, ...]) -> dict[str, Any]:
    found = {name: getattr(request, name) for name in order}
    found["META"] = {key: found["META"][key] for key in sorted(found["META"]) if key.isupper()}
    return found


@pytest.mark.parametrize("order", [FACTS, FACTS[::-1]], ids=["forth", "back"])
@pytest.mark.parametrize("name", ENVIRONS)
def test_request_is_the_one_that_the_framework_makes(name: str, order: tuple[str, ...]) -> None:
    mine = facts_of(LeanRequest(environ(**ENVIRONS[name])), order)
    assert mine == facts_of(WSGIRequest(environ(**ENVIRONS[name])), order)


def test_body_that_was_read_is_not_read_again() -> None:
    fields = {"CONTENT_LENGTH": "4"}
    assert LeanRequest(environ(**fields)).read() == b'{"a"'
    request = LeanRequest(environ(**fields))
    assert request.read(2) == b'{"'
    assert request.read() == b'a"'
    with pytest.raises(AttributeError):
        request.nothing  # noqa: B018 - looked up


def test_answers_have_the_headers_of_the_framework_s_own() -> None:
    answer = json_answer({"a": 1}, status=201)
    assert isinstance(answer, PiecesResponse)
    put_headers(answer, {"vary": ("Vary", "x")})
    answer["vary"] = "y"
    assert pairs_of(answer) == [("Content-Type", "application/json"), ("vary", "y")]
    assert (answer.content, answer.status_code, answer.reason_phrase) == (
        b'{"a":1}',
        201,
        "Created",
    )
    answer.content = b"other"
    assert list(answer) == [b"other"]
    assert (list(empty_answer().headers), empty_answer().content) == ([], b"")


def test_paths_of_others_go_on() -> None:
    seen: list[str] = []

    def others(environ: dict[str, Any], start: Any) -> list[bytes]:
        seen.append(environ["PATH_INFO"])
        return []

    told: list[tuple[str, dict[str, str]]] = []
    serve = placement_first(others)
    for path in ("/placement", "/placementX", "/placement/nowhere"):
        serve(environ(PATH_INFO=path), lambda status, headers: told.append((status, dict(headers))))
    assert seen == ["/placementX"]
    (first, headers), (second, _) = told
    assert (first[:3], second[:3]) == ("200", "401")
    assert headers["Content-Type"] == "application/json"
    assert int(headers["Content-Length"]) > 0
    assert headers["X-OpenStack-Request-ID"].startswith("req-")
