"""Only the ledger writes what is held and taken: no other module may (ADR 0027)."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
APPS = [
    "bridge",
    "capacity",
    "cloud",
    "commitments",
    "config",
    "console",
    "core",
    "failover",
    "hosts",
    "journal",
    "placement",
    "webhooks",
]
MODELS = frozenset({"HostCapacity", "LeavingRoom", "Reservation", "ReservationAllocation"})
RELATED = frozenset({"allocations", "reservations", "room", "slots", "targeted_reservations"})
"""Names of the relations by which rows of other tables reach rows of the ledger."""
WRITES = frozenset(
    {
        "abulk_create",
        "abulk_update",
        "acreate",
        "adelete",
        "asave",
        "aupdate",
        "bulk_create",
        "bulk_update",
        "create",
        "delete",
        "get_or_create",
        "save",
        "update",
        "update_or_create",
        "_raw_delete",
    }
)
TABLES = r'(?:only\s+)?"?capacity_(?:hostcapacity|leavingroom|reservation|reservationallocation)\b'
SQL_WRITE = re.compile(
    rf"\b(?:insert\s+into|update|delete\s+from|merge\s+into|copy|truncate(?:\s+table)?)\s+{TABLES}",
    re.IGNORECASE,
)
LEDGER = ("capacity/ledger/", "capacity/sql/")  # functions that the ledger calls


def _product_files() -> Iterator[Path]:
    for app in APPS:
        for path in sorted((ROOT / app).rglob("*")):
            if path.suffix in {".py", ".sql"} and "migrations" not in path.parts:
                yield path


def writes_in(source: str) -> list[str]:
    """Return what of a module writes the ledger's tables: calls of the ORM and SQL."""
    tree = ast.parse(source)
    outer = _declared(tree)
    found = [f"{node.lineno}: manager handed on" for node in _loose_managers(tree)]
    for scope in _scopes(tree):
        names = _names_of_rows(scope, outer)
        for node in ast.walk(scope):
            match node:
                case ast.Call(func=ast.Attribute(value=rows, attr=verb)):
                    if _is_write(verb, node) and _reaches_rows(rows, names):
                        found.append(f"{node.lineno}: .{verb}()")
                case ast.Constant() | ast.JoinedStr():
                    found += [f"{node.lineno}: {text}" for text in SQL_WRITE.findall(_text(node))]
    return sorted(set(found))


def _is_write(verb: str, call: ast.Call) -> bool:
    if verb in {"update", "aupdate"}:  # that of a dict takes what a queryset's does not
        return not call.args
    return verb in WRITES


def _scopes(tree: ast.Module) -> list[ast.AST]:
    """Return the functions of a module and its classes, and every other statement of it."""
    parts = [
        part
        for node in tree.body
        for part in (node.body if isinstance(node, ast.ClassDef) else [node])
    ]
    functions = [one for one in parts if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [*functions, ast.Module([one for one in parts if one not in functions], [])]


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(_text(one) if isinstance(one, ast.Constant) else "{}" for one in node.values)


def _mentions_model(annotation: ast.expr | None) -> bool:
    """Whether an annotation is a row, or a queryset or collection of rows."""
    return annotation is not None and any(
        (isinstance(one, ast.Name) and one.id in MODELS)
        or (isinstance(one, ast.Attribute) and one.attr in MODELS)
        for one in ast.walk(annotation)
    )


def _declared(tree: ast.Module) -> frozenset[str]:
    """Return the models, what they are imported as, and functions and fields that are of rows."""
    names = set(MODELS)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom():
                names |= {a.asname for a in node.names if a.name in MODELS and a.asname}
            case ast.FunctionDef(name=name, returns=found) if _mentions_model(found):
                names.add(name)
            case ast.ClassDef():
                names |= {
                    one.target.id
                    for one in node.body
                    if isinstance(one, ast.AnnAssign)
                    and isinstance(one.target, ast.Name)
                    and _mentions_model(one.annotation)
                }
    return frozenset(names)


def _names_of_rows(scope: ast.AST, outer: frozenset[str]) -> set[str]:
    """Return the names that stand for rows or querysets of the ledger in a function."""
    names = set(outer)
    for node in ast.walk(scope):
        match node:
            case ast.arg(arg=name, annotation=found) if _mentions_model(found):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=found):
                if _mentions_model(found):
                    names.add(name)
    before = 0
    while before != len(names):
        before = len(names)
        for target, value in _bindings(scope):
            if _reaches_rows(value, names):
                names |= {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
    return names


def _bindings(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(scope):
        match node:
            case ast.Assign():
                yield from ((target, node.value) for target in node.targets)
            case ast.For() | ast.comprehension():
                yield node.target, node.iter
            case ast.NamedExpr():
                yield node.target, node.value


def _reaches_rows(node: ast.expr, names: Collection[str]) -> bool:
    """Whether a chain of calls and attributes starts at rows of the ledger, or goes over them."""
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(value=rest, attr=name):
            return name in RELATED or name in names or _reaches_rows(rest, names)
        case ast.Call(func=ast.Name(id="list" | "sorted" | "tuple" | "reversed")):
            return any(_reaches_rows(one, names) for one in node.args)
        case ast.Call(func=rest) | ast.Subscript(value=rest):
            return _reaches_rows(rest, names)
        case ast.BinOp(left=left, right=right):
            return _reaches_rows(left, names) or _reaches_rows(right, names)
        case _:
            return False


def _loose_managers(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Yield managers of the ledger's models that are not asked something at once."""
    asked = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in MODELS:
                if attr.endswith(("objects", "_manager")) and id(node) not in asked:
                    yield node


def _writers() -> dict[str, list[str]]:
    writers = {}
    for path in _product_files():
        name, text = str(path.relative_to(ROOT)), path.read_text()
        found = writes_in(text) if path.suffix == ".py" else SQL_WRITE.findall(text)
        if found and not name.startswith(LEDGER):
            writers[name] = found
    return writers


def test_only_the_ledger_writes_its_tables() -> None:
    writers = _writers()

    assert writers == {}


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("Reservation.objects.filter(pk=1).update(vcpus=2)", "2: .update()"),
        ("Reservation.objects.bulk_create([])", "2: .bulk_create()"),
        ("commitment.slots.all().delete()", "2: .delete()"),
        ("rows = list(Reservation.objects.all())\nfor row in rows:\n    row.save()", "4: .save()"),
        ("copied(Reservation.objects, [])", "2: manager handed on"),
        ("def f(row: QuerySet[Reservation]) -> None:\n    row.delete()", "3: .delete()"),
        (
            "SQL = f'UPDATE  capacity_hostcapacity AS {x} SET a = 1'",
            "2: UPDATE  capacity_hostcapacity",
        ),
        ("SQL = 'copy capacity_reservation (id) FROM STDIN'", "2: copy capacity_reservation"),
    ],
)
def test_a_write_of_any_kind_is_found(written: str, line: str) -> None:
    source = f"from capacity.models import Reservation\n{written}\n"

    assert writes_in(source) == [line]


@pytest.mark.parametrize(
    "read",
    [
        "Reservation.objects.filter(pk=1).values_list('pk')",
        "known = {}\nknown.update(Reservation.objects.in_bulk([1]))",
        "Commitment.objects.filter(slots__pk=1).update(state='x')",
        "SQL = 'SELECT 1 FROM capacity_reservation FOR NO KEY UPDATE OF held'",
        "SQL = 'UPDATE capacity_reservationlike SET a = 1'",
    ],
)
def test_what_only_reads_is_not(read: str) -> None:
    assert writes_in(f"from capacity.models import Reservation\n{read}\n") == []
