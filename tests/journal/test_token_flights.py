"""Questions that are asked once for all, and who waits for them."""

from __future__ import annotations

import threading

import pytest

from journal import token_flights
from journal.token_flights import TokenFlights, TooManyWaitError

LONG_SECONDS = 30.0


class Call(threading.Thread):
    """Asks one question, and keeps what came of it."""

    def __init__(self, flights: TokenFlights[str], key: bytes, may_answer: threading.Event) -> None:
        super().__init__(daemon=True)
        self.flights, self.key, self.may_answer = flights, key, may_answer
        self.has_asked = threading.Event()
        self.told: str | Exception = ""
        self.start()

    def question(self) -> str:
        self.has_asked.set()
        assert self.may_answer.wait(LONG_SECONDS)
        return "yes"

    def run(self) -> None:
        try:
            self.told = self.flights.ask(self.key, self.question)
        except TooManyWaitError as error:
            self.told = error


@pytest.fixture
def flights() -> TokenFlights[str]:
    return TokenFlights(most_waiting=1, seconds=LONG_SECONDS)


def test_a_burst_at_a_quick_keystone_is_answered(
    flights: TokenFlights[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_flights, "YOUNG_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(token_flights, "PATIENCE_SECONDS", LONG_SECONDS)
    may_answer = threading.Event()
    first = Call(flights, b"a", may_answer)
    assert first.has_asked.wait(LONG_SECONDS)
    others = [Call(flights, key, may_answer) for key in (b"a", b"b", b"c")]
    may_answer.set()
    for call in (first, *others):
        call.join(LONG_SECONDS)
    assert [call.told for call in (first, *others)] == ["yes"] * 4


def test_nobody_else_waits_while_keystone_hangs(
    flights: TokenFlights[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_flights, "YOUNG_SECONDS", 0.0)
    monkeypatch.setattr(token_flights, "PATIENCE_SECONDS", LONG_SECONDS)
    may_answer = threading.Event()
    first = Call(flights, b"a", may_answer)
    assert first.has_asked.wait(LONG_SECONDS)
    with pytest.raises(TooManyWaitError):
        flights.ask(b"b", lambda: "never")
    may_answer.set()
    first.join(LONG_SECONDS)
    assert first.told == "yes"


def test_patience_ends(flights: TokenFlights[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_flights, "YOUNG_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(token_flights, "PATIENCE_SECONDS", 0.0)
    may_answer = threading.Event()
    first = Call(flights, b"a", may_answer)
    assert first.has_asked.wait(LONG_SECONDS)
    with pytest.raises(TooManyWaitError):
        flights.ask(b"b", lambda: "never")
    may_answer.set()
    first.join(LONG_SECONDS)
