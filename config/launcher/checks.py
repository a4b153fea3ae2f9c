"""``./run lint``: every check, each of them run even if another fails, one table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from config.launcher.places import Checkout
from config.launcher.processes import run_in_foreground
from config.launcher.terminal import say

_STOPPED_BY_SIGNAL = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LintStep:
    """One check: its title, the module (or ``manage.py``) to run, and its arguments."""

    title: str
    arguments: tuple[str, ...]


STEPS = (
    LintStep(title="ruff check", arguments=("-m", "ruff", "check", ".", "run")),
    LintStep(title="ruff format", arguments=("-m", "ruff", "format", "--check", ".", "run")),
    LintStep(title="mypy", arguments=("-m", "mypy", ".", "run")),
    LintStep(
        title="import-linter",  # it has no module that runs
        arguments=("-c", "from importlinter.cli import lint_imports_command as lint; lint()"),
    ),
    LintStep(
        title="makemigrations --check",
        arguments=("manage.py", "makemigrations", "--check", "--dry-run"),
    ),
    LintStep(
        title="check --deploy",
        arguments=("manage.py", "check", "--deploy", "--fail-level", "WARNING"),
    ),
    LintStep(
        title="documentation of settings",
        arguments=("manage.py", "export_configuration", "--check"),
    ),
)


def run_lint(checkout: Checkout, env: Mapping[str, str]) -> int:
    """Run every check, print a summary, return 1 if any failed."""
    results: list[tuple[str, int, float]] = []
    for check in STEPS:
        say(f"--- {check.title}")
        started = time.monotonic()
        command = [str(checkout.python), *check.arguments]
        code = run_in_foreground(command, env=env, cwd=checkout.root)
        results.append((check.title, code, time.monotonic() - started))
        if code > _STOPPED_BY_SIGNAL:
            return code
    say("")
    for title, code, seconds in results:
        say(f"{title:<28} {'ok' if code == 0 else 'FAILED':<7} {seconds:6.1f} s")
    return int(any(code for _, code, _ in results))
