"""Keystone and Limes in a process of their own, so that serving costs the syncer nothing.

Run as ``python -m benchmarks.cloud_server COMMITMENTS PROJECTS GROUP ZONE...``; it prints its
address and serves until its standard input ends.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.peers.fake_cloud import FakeCloud, limes_commitment


@contextmanager
def serving(*, commitments: int, projects: int, group: str, zones: Sequence[str]) -> Iterator[str]:
    """Serve some commitments over some projects while the context lasts; yield the address."""
    command = [sys.executable, "-m", "benchmarks.cloud_server", str(commitments), str(projects)]
    with subprocess.Popen(  # noqa: S603 - ourselves
        [*command, group, *zones], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            address = process.stdout.readline().strip() if process.stdout else ""
            if not address:
                message = "the fake cloud did not start"
                raise RuntimeError(message)
            yield address
        finally:
            process.kill()


def _serve(commitments: int, projects: int, group: str, zones: Sequence[str]) -> None:
    cloud = FakeCloud()
    for number in range(projects):
        cloud.add(f"project-{number:06}")
    for number in range(commitments):
        commitment = limes_commitment(
            f"{number:08x}-0000-4000-8000-{number:012x}",
            id=number,
            resource_name=f"hw_version_{group}_ram",
            availability_zone=zones[number % len(zones)],
        )
        cloud.commitments[f"project-{number % projects:06}"].append(commitment)
    cloud.start()
    sys.stdout.write(f"{cloud.url}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cloud.stop()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
