from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from tests.docs.tour import ROOT

APPS = (
    "journal",
    "core",
    "hosts",
    "scheduling",
    "capacity",
    "commitments",
    "failover",
    "placement",
    "bridge",
    "webhooks",
    "console",
    "config",
    "cloud",
)
ROOT_CLASS = "HeadroomError"
PAGE = ROOT / "docs" / "errors.md"


def trees() -> list[ast.Module]:
    files = [path for app in APPS for path in sorted((ROOT / app).rglob("*.py"))]
    return [ast.parse(path.read_text(encoding="utf-8")) for path in files]


def name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def error_classes(modules: list[ast.Module]) -> dict[str, ast.ClassDef]:
    """Return the classes below ``HeadroomError`` by name, itself included."""
    every = [node for tree in modules for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    known = {ROOT_CLASS}
    while True:
        found = {c.name for c in every if c.name in known or known & {name_of(b) for b in c.bases}}
        if found <= known:
            return {c.name: c for c in every if c.name in known}
        known |= found


def declared_codes(classes: Iterable[ast.ClassDef]) -> Iterator[str]:
    """Yield the codes that classes declare as ``code = "..."``."""
    for node in classes:
        for statement in node.body:
            if isinstance(statement, ast.Assign) and name_of(statement.targets[0]) == "code":
                assert isinstance(statement.value, ast.Constant), ast.dump(node)
                yield str(statement.value.value)


def codes_in(modules: list[ast.Module]) -> Iterator[str]:
    """Yield the codes that classes declare and that calls give as ``code="..."``."""
    classes = error_classes(modules)
    yield from declared_codes(classes.values())
    for tree in modules:
        for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
            if name_of(call.func) in classes:
                for keyword in call.keywords:
                    if keyword.arg == "code":
                        assert isinstance(keyword.value, ast.Constant), ast.dump(call)
                        yield str(keyword.value.value)


def documented_codes(page: str) -> list[str]:
    section = page[page.index("## Codes") : page.index("## Reasons")]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_errors_page_lists_exactly_the_codes_of_the_code() -> None:
    documented = documented_codes(PAGE.read_text(encoding="utf-8"))
    assert len(set(documented)) == len(documented)
    assert set(documented) == set(codes_in(trees()))


def test_every_error_class_has_a_code_of_its_own() -> None:
    classes = error_classes(trees())
    for name, node in classes.items():
        assigned = [name_of(s.targets[0]) for s in node.body if isinstance(s, ast.Assign)]
        assert "code" in assigned, name
    codes = list(declared_codes(classes.values()))
    assert len(set(codes)) == len(codes)


def test_codes_are_found_in_subclasses_and_in_calls() -> None:
    source = (
        "class HeadroomError(Exception):\n    code = 'a'\n"
        "class Child(HeadroomError):\n    code = 'b'\n"
        "class Grandchild(module.Child):\n    code = 'c'\n"
        "class Other(Exception):\n    code = 'x'\n"
        "raise module.Child('text', code='d')\nOther(code='y')\n"
    )
    assert set(codes_in([ast.parse(source)])) == {"a", "b", "c", "d"}


def test_every_source_folder_is_searched() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages - {"tests", "benchmarks"} == set(APPS)
