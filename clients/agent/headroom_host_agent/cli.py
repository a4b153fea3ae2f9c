"""The agent's commands. ``discover`` says what this host has; no server is needed."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headroom_host_agent.configuration import DEFAULT_FILE, ConfigurationError, load_settings
from headroom_host_agent.resources.facts import ResourceError, ResourceType
from headroom_host_agent.resources.listers import configured_listers, load_listers
from headroom_host_agent.resources.manager import Manager
from headroom_host_agent.resources.sizes import binary_size
from headroom_host_agent.resources.status import FullResourceStatus, ResourceStatus
from headroom_host_agent.resources.tree import SYSTEM

RUNTIME, CONFIGURATION = 1, 2
GPU_HEALTH = "gpu-health.json"  # in the data folder


def main(arguments: Sequence[str] | None = None, *, program: str = "headroom-host-agent") -> int:
    """Run a command and return its exit code: 0, 1 for a failure, 2 for a wrong configuration."""
    options = _parser(program).parse_args(arguments)
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
    file = options.config or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    try:
        settings = load_settings(file, os.environ)
        manager = Manager(
            settings,
            load_listers(configured_listers(settings, options.sysroot)),
            sysroot=options.sysroot,
            gpu_health_file=options.sysroot / settings.data_dir.relative_to("/") / GPU_HEALTH,
        )
        manager.initialize()
        report = manager.get_full_status()
    except ConfigurationError as error:
        return _refused(program, error, CONFIGURATION)
    except (ResourceError, ValueError) as error:
        return _refused(program, error, RUNTIME)
    text = json.dumps(report.to_json()) if options.json else "\n".join(_lines(report))
    sys.stdout.write(text + "\n")
    return 0


def _refused(program: str, error: Exception, code: int) -> int:
    sys.stderr.write(f"{program}: {error}\n")
    return code


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    discover = commands.add_parser("discover", help="what this host has and gives away")
    discover.add_argument("--json", action="store_true", help="the whole report")
    discover.add_argument("--config", type=Path, help=f"configuration, else {DEFAULT_FILE}")
    discover.add_argument(
        "--sysroot", type=Path, default=SYSTEM, help="where /proc and /sys are, for a copy of them"
    )
    return parser


def _lines(report: FullResourceStatus) -> list[str]:
    rows = [("", "capacity", "limit", "allocated", "available", "source")]
    rows += [_row(status) for status in report.resources.values()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    if report.gpu is not None:
        lines.append(f"gpu: {json.dumps(report.gpu.to_json())}")
    lines += [f"numa: {json.dumps(status.to_json())}" for status in report.cells]
    return lines


def _row(status: ResourceStatus) -> tuple[str, str, str, str, str, str]:
    def text(amount: int) -> str:
        if status.type == ResourceType.CPU:
            return str(amount)
        rates = (ResourceType.NETWORK, ResourceType.DISK_IO)
        return binary_size(amount) + ("/s" if status.type in rates else "")

    return (
        status.type.value,
        text(status.capacity),
        text(status.effective_limit),
        text(status.allocated),
        text(status.available),
        status.source.value,
    )
