"""The running cloud as a region file, and back into Headroom."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping

from cloud.api import CallError
from cloud.catalog import POLICY
from cloud.layout import Layout, openstack_variables


def dump_and_import(layout: Layout, environ: Mapping[str, str]) -> str:
    """Dump the cloud, import the file, and return what is in it.

    Raises:
        CallError: A command failed, or something is missing in the file.
    """
    region = layout.state / "region.json"
    manage(layout, environ, "dump_region", "--output", str(region))
    content = json.loads(region.read_bytes())
    policy = layout.state / "policy.json"
    policy.write_text(json.dumps(POLICY), encoding="utf-8")
    said = json.loads(manage(layout, environ, "import_region", str(region), str(policy), "--json"))
    counts = {
        name: len(content[section][name])
        for section, name in (
            ("identity", "projects"),
            ("compute", "hypervisors"),
            ("compute", "servers"),
            ("compute", "server_groups"),
            ("placement", "resource_providers"),
        )
    }
    empty = [name for name, count in counts.items() if not count]
    skipped = [remark for remark in said["remarks"] if not remark["is_kept"]]
    if empty or skipped:
        raise CallError(f"nothing in {empty}, skipped {skipped[:3]}")
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def manage(
    layout: Layout,
    environ: Mapping[str, str],
    *words: str,
    login: Mapping[str, str] | None = None,
    good: Collection[int] = (0,),
) -> str:
    """Run a command of ``manage.py``; return what it printed.

    Args:
        layout: Where the cloud is.
        environ: Of the command.
        words: The command.
        login: OS_* variables that differ from the administrator's.
        good: Statuses that are no failure.

    Raises:
        CallError: It failed, with the last line that it said.
    """
    done = subprocess.run(  # noqa: S603 - our own commands
        [sys.executable, str(layout.root / "manage.py"), *words],
        env={
            **environ,
            **openstack_variables(layout),
            **(login or {}),
            "HEADROOM_LOG_LEVEL": "WARNING",
        },
        cwd=layout.root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in good:
        problem = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CallError(f"manage.py {words[0]} failed: {problem}")
    return done.stdout
