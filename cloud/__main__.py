"""``python -m cloud``: what ``./run cloud`` runs inside Headroom's environment."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from cloud.api import Api
from cloud.bringup import bring_up, headroom_environment
from cloud.exercise import Exercise, row, run_exercise
from cloud.layout import Layout, openstack_variables
from cloud.processes import Processes
from cloud.switching import Databases, databases
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
    parser.add_argument("--switch-over", action="store_true")
    options = parser.parse_args()
    layout = Layout(
        root=options.root, home=options.home, base_port=options.port, host_count=options.hosts
    )
    listen_for_stop()
    processes = Processes(layout)
    held = ExitStack()
    pair: Databases | None = None
    environ = dict(os.environ)
    try:
        if options.switch_over:
            pair = held.enter_context(databases(layout.home / "postgres", environ))
            environ["DATABASE_URL"] = pair.url
        bring_up(layout, processes, environ)
        code = 0
        if options.servers:
            code = _exercise(layout, processes, environ, options.servers, pair)
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
        with held:
            processes.stop_all()


def _exercise(
    layout: Layout,
    processes: Processes,
    environ: Mapping[str, str],
    server_count: int,
    pair: Databases | None,
) -> int:
    outcomes = run_exercise(
        Exercise(
            layout=layout,
            processes=processes,
            environ=headroom_environment(layout, environ),
            server_count=server_count,
            api=Api(layout),
            databases=pair,
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
