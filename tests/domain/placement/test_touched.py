from __future__ import annotations

import json
from typing import Any

import pytest

from placement.domain.touched import Touched, counts_generations, touched_by

A, B, C = (f"{number:08d}-0000-4000-8000-000000000000" for number in range(3))


def touched(providers: tuple[str, ...] = (), consumers: tuple[str, ...] = ()) -> Touched:
    return Touched(providers=frozenset(providers), consumers=frozenset(consumers))


def counted(generations: tuple[str, ...], consumers: tuple[str, ...]) -> Touched:
    return Touched(generations=frozenset(generations), consumers=frozenset(consumers))


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/resource_providers", {"name": "a", "uuid": A}, touched((A,))),
        ("/resource_providers", {"name": "a"}, touched()),
        (
            "/resource_providers",
            {"name": "a", "uuid": A, "parent_provider_uuid": B},
            touched((A, B)),
        ),
        (f"/resource_providers/{A}", {"name": "b", "parent_provider_uuid": B}, touched((A, B))),
        (f"/resource_providers/{A}", None, touched((A,))),
        (f"/resource_providers/{A}/inventories/VCPU", {"total": 1}, touched((A,))),
        (f"/resource_providers/{A}/traits", {"traits": []}, touched((A,))),
        (
            f"/allocations/{C}",
            {"allocations": [{"resource_provider": {"uuid": A}, "resources": {"VCPU": 1}}]},
            counted((A,), (C,)),
        ),
        (f"/allocations/{C}", {"allocations": {A: {}, B: {}}}, counted((A, B), (C,))),
        (f"/allocations/{C.upper().replace('-', '')}", None, touched((), (C,))),
        (
            "/allocations",
            {C: {"allocations": {A: {}}}, B: {"allocations": {}}},
            counted((A,), (B, C)),
        ),
        (
            "/reshaper",
            {"inventories": {A: {}}, "allocations": {C: {"allocations": {B: {}}}}},
            touched((A, B), (C,)),
        ),
        ("/traits/CUSTOM_A", None, Touched(has_names=True)),
        ("/resource_classes", {"name": "CUSTOM_A"}, Touched(has_names=True)),
        ("/allocations", [1, {"a": 2}], touched()),
        (f"/allocations/{C}", {"allocations": 7}, touched((), (C,))),
        ("/", None, touched()),
    ],
)
def test_a_write_touches_what_it_names(path: str, body: Any, expected: Touched) -> None:
    assert touched_by(path, b"" if body is None else json.dumps(body).encode()) == expected


@pytest.mark.parametrize("body", [b"{", b"\xff", b'{"allocations": NaN}', b"[" * 100_000])
def test_a_body_that_is_no_json_leaves_what_the_path_says(body: bytes) -> None:
    assert touched_by(f"/allocations/{C}", body) == touched((), (C,))


@pytest.mark.parametrize(
    ("method", "path", "minor", "expected"),
    [
        ("PUT", f"/allocations/{C}", 12, True),
        ("POST", "/allocations", 13, True),
        ("DELETE", f"/allocations/{C}", 0, True),
        ("POST", "/reshaper", 30, True),
        ("DELETE", f"/resource_providers/{A}/inventories", 39, True),
        ("PUT", f"/resource_providers/{A}/aggregates", 18, False),
        ("PUT", f"/resource_providers/{A}/aggregates", 19, True),
        ("PUT", f"/resource_providers/{A}/traits", 39, False),
        ("POST", "/resource_providers", 39, True),
        ("PUT", f"/resource_providers/{A}", 39, False),
        ("DELETE", f"/resource_providers/{A}", 39, False),
        ("PUT", "/traits/CUSTOM_A", 39, False),
    ],
)
def test_of_which_writes_generations_tell(
    method: str, path: str, minor: int, *, expected: bool
) -> None:
    assert counts_generations(method, path, minor) is expected
