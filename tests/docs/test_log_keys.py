"""The keys of log lines are those of the manual's table, and no line has others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "log-keys.md"
APPS = (
    "bridge",
    "capacity",
    "commitments",
    "config",
    "console",
    "core",
    "failover",
    "hosts",
    "journal",
    "placement",
    "webhooks",
)
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
#: Put on every line by the logging tree.
OF_EVERY_LINE = {"event", "level", "logger", "timestamp", "exception", "trace_id"}
#: The one function whose result is spread over a line.
SPREAD = "line_of"


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def is_log_call(call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    target = call.func.value
    return isinstance(target, ast.Name) and target.id == "log" and call.func.attr in LEVELS


def is_binding(call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    return call.func.attr in {"bind_contextvars", "bound_contextvars"}


def keys_of_line(tree: ast.AST) -> set[str]:
    """Return the keys of the dictionary that ``line_of`` returns."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == SPREAD:
            return {
                key.value
                for part in ast.walk(node)
                if isinstance(part, ast.Dict)
                for key in part.keys
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
    return set()


def written_keys() -> tuple[set[str], list[str]]:
    """Return the keys that lines are written with, and the places that spread something else."""
    found, spread = set(OF_EVERY_LINE), []
    for app in APPS:
        for path in sorted((ROOT / app).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found |= keys_of_line(tree)
            for call in calls(tree):
                if not (is_log_call(call) or is_binding(call)):
                    continue
                found |= {item.arg for item in call.keywords if item.arg and item.arg != "exc_info"}
                spread += [
                    f"{path.relative_to(ROOT)}:{call.lineno} {ast.unparse(item.value)}"
                    for item in call.keywords
                    if item.arg is None
                ]
    return found, spread


def documented_keys() -> list[str]:
    names = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    return [name for row in names for name in re.findall(r"`(\w+)`", row)]


def test_keys_of_log_lines_are_those_of_the_table() -> None:
    found, _ = written_keys()
    documented = documented_keys()
    assert sorted(found - set(documented)) == [], "not in docs/log-keys.md"
    assert sorted(set(documented) - found) == [], "no line has them"
    assert len(documented) == len(set(documented))


def test_no_line_has_keys_that_come_from_data() -> None:
    _, spread = written_keys()
    allowed = [place for place in spread if SPREAD in place or place.endswith(" line")]
    assert spread == allowed
