"""What the floors above hear of agents' workloads, in the transaction that changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hosts.agents.workload_models import Workload

#: Called with workloads whose state changed by what an agent or its silence said.
workloads_changed: list[Callable[[Iterable[Workload]], None]] = []


def tell_workloads_changed(rows: Iterable[Workload]) -> None:
    """Tell the floors above."""
    for told in workloads_changed:
        told(rows)


#: Called when the mode of an agent changed.
modes_changed: list[Callable[[], None]] = []


def tell_modes_changed() -> None:
    """Tell the floors above."""
    for told in modes_changed:
        told()
