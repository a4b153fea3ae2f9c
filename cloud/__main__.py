"""``python -m cloud``: what ``./run cloud`` runs inside Headroom's environment."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from cloud.api import Api
from cloud.bringup import bring_up, headroom_environment
from cloud.exercise import Exercise, row, run_exercise
from cloud.layout import Layout, openstack_variables
from cloud.processes import Processes
from config.launcher.processes import StopRequested, ignore_stop, listen_for_stop
from config.launcher.terminal import LauncherError, complain, say


def main() -> int:
    """Bring the cloud up, exercise it, and stop it; return the exit status."""
    parser = argparse.ArgumentParser(prog="./run cloud")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    layout = Layout(
        root=options.root, home=options.home, base_port=options.port, host_count=options.hosts
    )
    listen_for_stop()
    processes = Processes(layout)
    try:
        bring_up(layout, processes, os.environ)
        code = _exercise(layout, processes, options.servers) if options.servers else 0
        if options.keep:
            _stay(layout)
    except LauncherError as error:
        complain(f"headroom: {error}\nlogs: {layout.logs}")
        return 1
    except StopRequested as stop:
        return 128 + stop.signum
    else:
        return code
    finally:
        ignore_stop()
        say("stopping")
        processes.stop_all()


def _exercise(layout: Layout, processes: Processes, server_count: int) -> int:
    outcomes = run_exercise(
        Exercise(
            layout=layout,
            processes=processes,
            environ=headroom_environment(layout, os.environ),
            server_count=server_count,
            api=Api(layout),
        )
    )
    failed = [outcome for outcome in outcomes if not outcome.is_good]
    say("")
    for outcome in failed:
        say(row(outcome))
    say(f"{len(outcomes) - len(failed)} of {len(outcomes)} steps passed; logs: {layout.logs}")
    return int(bool(failed))


def _stay(layout: Layout) -> None:
    for name, text in openstack_variables(layout).items():
        say(f"export {name}={text}")
    say(f"ready: {layout.url('headroom')} (Ctrl-C stops everything)")
    try:
        while True:
            time.sleep(1)
    except StopRequested:
        return


if __name__ == "__main__":
    sys.exit(main())
