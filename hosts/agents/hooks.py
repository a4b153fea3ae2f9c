"""What the floors above hear of agents' workloads, in the transaction that changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from hosts.agents.workload_models import Workload

#: Called with workloads whose state changed by what an agent or its silence said.
workloads_changed: list[Callable[[Iterable[Workload]], None]] = []


def tell_workloads_changed(rows: Iterable[Workload]) -> None:
    """Tell the floors above."""
    for told in workloads_changed:
        told(rows)


#: Called with the name of a host; returns what higher floors have on it, by what it is, in words.
uses_of_host: list[Callable[[str], Mapping[str, int]]] = []


def count_uses(host_name: str) -> dict[str, int]:
    """Return what the floors above have on a host, such as slots, by what it is; no zeros."""
    found: dict[str, int] = {}
    for told in uses_of_host:
        found |= {what: count for what, count in told(host_name).items() if count}
    return found


#: Called with the name of a host; returns how many reservations of all kinds are on it or leave it.
held_on_host: list[Callable[[str], int]] = []


def count_held(host_name: str) -> int:
    """Return how many reservations the floors above have on a host."""
    return sum(told(host_name) for told in held_on_host)


#: Called when the mode of an agent changed.
modes_changed: list[Callable[[], None]] = []


def tell_modes_changed() -> None:
    """Tell the floors above."""
    for told in modes_changed:
        told()
