"""Virtual functions that failed: none is tried a third time (spec hosts, A.11).

A function is quarantined when its start failed for two different VMs: one failure may be the VM's.
"""

from __future__ import annotations

import json
from pathlib import Path

from headroom_host_agent.files import replace_file

_FAILURES = 2


def read_quarantined(health_file: Path | None) -> tuple[frozenset[str], str]:
    """Return quarantined addresses, and why the file is of no use; empty when it is."""
    if health_file is None:
        return frozenset(), ""
    try:
        failures = _read(health_file)
    except (OSError, ValueError) as error:
        return frozenset(), f"the health of GPUs cannot be read: {error}"
    return frozenset(vf for vf, vms in failures.items() if len(vms) >= _FAILURES), ""


def record_failure(health_file: Path, address: str, instance_id: str) -> None:
    """Remember that a function failed for a VM; the same VM counts once.

    Raises:
        ValueError: The file holds something else; it is left as it is.
        OSError: It cannot be read or written.
    """
    failures = _read(health_file)
    known = failures.setdefault(address, [])
    if instance_id not in known:
        known.append(instance_id)
    replace_file(health_file, json.dumps(failures, sort_keys=True))


def clear_failures(health_file: Path, address: str) -> None:
    """Forget a function's failures, after it worked or an operator repaired it.

    Raises:
        ValueError: As ``record_failure``.
        OSError: The same.
    """
    failures = _read(health_file)
    if failures.pop(address, None) is not None:
        replace_file(health_file, json.dumps(failures, sort_keys=True))


def _read(path: Path) -> dict[str, list[str]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    is_right = isinstance(content, dict) and all(
        isinstance(vms, list) and all(isinstance(vm, str) for vm in vms) for vms in content.values()
    )
    if not is_right:
        raise ValueError(f"{path} is not a list of failures")
    return dict(content)
