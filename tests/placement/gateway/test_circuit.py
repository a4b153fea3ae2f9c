"""When a service that failed is tried again."""

from __future__ import annotations

from placement.gateway.circuit import Circuit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def circuit_after(failures: int) -> tuple[Circuit, Clock]:
    clock = Clock()
    circuit = Circuit(most_failures=3, open_seconds=10.0, clock=clock)
    for _ in range(failures):
        assert circuit.wait_seconds() == 0
        circuit.failed()
    return circuit, clock


def test_it_opens_after_failures_in_a_row() -> None:
    assert circuit_after(2)[0].wait_seconds() == 0
    assert circuit_after(3)[0].wait_seconds() == 10


def test_a_success_in_between_starts_the_count_anew() -> None:
    circuit, _ = circuit_after(2)
    circuit.succeeded()
    circuit.failed()
    assert circuit.wait_seconds() == 0


def test_one_tries_at_a_time_and_its_success_closes_it() -> None:
    circuit, clock = circuit_after(3)
    clock.now += 9
    assert circuit.wait_seconds() == 1
    clock.now += 1
    assert circuit.wait_seconds() == 0
    assert circuit.wait_seconds() == 10
    circuit.succeeded()
    assert circuit.wait_seconds() == 0


def test_its_failure_keeps_it_open() -> None:
    circuit, clock = circuit_after(3)
    clock.now += 10
    assert circuit.wait_seconds() == 0
    clock.now += 4
    circuit.failed()
    assert circuit.wait_seconds() == 10


def test_one_who_never_came_back_is_followed_by_another() -> None:
    circuit, clock = circuit_after(3)
    clock.now += 10
    assert circuit.wait_seconds() == 0
    clock.now += 10
    assert circuit.wait_seconds() == 0
