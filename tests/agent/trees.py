"""Small copies of /proc and /sys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def plant(root: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Path:
    """Write files and symlinks (path -> path, both below the root) and return the root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name, target in (links or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (root / target).mkdir(parents=True, exist_ok=True)
        path.symlink_to(root / target)
    return root


def processors(count: int, *, siblings: int = 0, sockets: int = 0) -> str:
    """Return a cpuinfo of so many processors, spread over sockets one after the other."""
    blocks = []
    for number in range(count):
        lines = [f"processor\t: {number}", "model name\t: a: b"]
        if sockets:
            lines.append(f"physical id\t: {number * sockets // count}")
        if siblings:
            lines.append(f"siblings\t: {siblings}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def host_tree(root: Path, *, cpus: int = 32, memory_kib: int = 256 * 1024**2) -> Path:
    """Return a host with 10 Gbit/s and its data folder."""
    route = (
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eno1\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    )
    plant(
        root,
        {
            "proc/cpuinfo": processors(cpus),
            "proc/meminfo": f"MemTotal:       {memory_kib} kB\n",
            "proc/net/route": route,
            "proc/sys/kernel/random/boot_id": "1c9b7f3e-0000-4000-8000-000000000001\n",
            "sys/class/net/eno1/speed": "10000\n",
        },
    )
    (root / "var/lib/headroom").mkdir(parents=True)
    return root
