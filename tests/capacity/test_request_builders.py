"""What the scheduler is asked is built in one place, beside what Nova sends."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.capacity.test_ledger_writers import APPS, ROOT

BUILDERS = {"capacity/api/nova_request.py", "capacity/ledger/slot_request.py"}


def builds_request(source: str) -> bool:
    """Return whether a module makes a request of its own instead of asking ``slot_request``."""
    calls = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    names = (getattr(call, "id", getattr(call, "attr", "")) for call in calls)
    return "PlacementRequest" in names


def product_modules() -> Iterator[str]:
    for app in APPS:
        for path in sorted((ROOT / app).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix()


def test_requests_are_made_of_slots_and_of_the_body_that_nova_sends_alone() -> None:
    found = {name for name in product_modules() if builds_request((ROOT / name).read_text())}
    assert found == BUILDERS


def test_a_request_that_is_built_elsewhere_is_noticed() -> None:
    assert builds_request("from scheduling import request\nrequest.PlacementRequest(vcpus=1)")
    assert builds_request("def ask():\n    return PlacementRequest(vcpus=1)")
    assert not builds_request("def ask(one: PlacementRequest) -> None: ...")
