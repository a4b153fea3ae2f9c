"""Processes of a role that run beside each other."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from config.launcher.places import this_checkout
from config.launcher.processes import Child, start_child, stop_children
from config.launcher.production import serve_command


@contextmanager
def served(
    role: str, environment: Mapping[str, str], directory: Path, count: int
) -> Iterator[list[Child]]:
    """Run so many; those that still run are stopped at the end."""
    checkout = this_checkout()
    children = [
        start_child(
            role,
            serve_command(checkout, role, []),
            log=directory / f"{role}-{number}.log",
            env=environment,
            cwd=checkout.root,
            death_signal=signal.SIGKILL,
        )
        for number in range(count)
    ]
    try:
        yield children
    finally:
        stop_children(children, ((signal.SIGTERM, 15.0),))
