from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from config.launcher.processes import wait_until
from journal.actors import Actor
from journal.auth import Credentials, Unauthenticated
from journal.errors import HeadroomError
from journal.keystone import (
    UNKNOWN_TOKEN_SECONDS,
    KeystoneAuthenticator,
    KeystoneUnavailable,
    TokenLimits,
    ValidToken,
)

ACTOR = Actor(name="limes", roles=frozenset({"reader"}))
CHALLENGE = 'Keystone uri="http://keystone/v3"'


@dataclass
class Identity:
    """Keystone as it is asked, and the time."""

    now: float = 1000.0
    asked: list[str] = field(default_factory=list)
    answer: Callable[[], ValidToken | None] = lambda: ValidToken(actor=ACTOR, expires_at=9999.0)

    def validate(self, credentials: Credentials) -> ValidToken | None:
        self.asked.append(credentials.token)
        return self.answer()

    def authenticator(
        self,
        *,
        seconds: int = 300,
        entries: int = 10,
        waiting: int = 8,
        timeout: float = 60.0,
    ) -> KeystoneAuthenticator:
        limits = TokenLimits(
            cache_seconds=seconds,
            cache_entries=entries,
            most_waiting=waiting,
            timeout_seconds=timeout,
        )
        return KeystoneAuthenticator(
            self, challenge=CHALLENGE, limits=limits, clock=lambda: self.now
        )


def down() -> ValidToken | None:
    raise KeystoneUnavailable("Keystone cannot be asked about the token")


@pytest.fixture
def identity() -> Identity:
    return Identity()


@pytest.mark.parametrize("token", ["", " ", "a b", "ä", "a\x00", "a\n"])
def test_what_cannot_be_a_token_is_refused_without_asking(identity: Identity, token: str) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        identity.authenticator().authenticate(Credentials(token=token))
    assert refusal.value.headers == {"WWW-Authenticate": CHALLENGE}
    with pytest.raises(Unauthenticated):
        identity.authenticator().authenticate(Credentials(token="good", service_token="a b"))
    assert identity.asked == []


def test_a_known_token_is_not_asked_about_again_until_it_is_old(identity: Identity) -> None:
    authenticator = identity.authenticator()
    for now, asked in ((1000.0, 1), (1299.9, 1), (1300.0, 2)):
        identity.now = now
        assert authenticator.authenticate(Credentials(token="a")) is ACTOR
        assert len(identity.asked) == asked


def test_a_token_is_never_remembered_beyond_its_end(identity: Identity) -> None:
    identity.answer = lambda: ValidToken(actor=ACTOR, expires_at=1010.0)
    authenticator = identity.authenticator()
    authenticator.authenticate(Credentials(token="a"))
    identity.now, identity.answer = 1010.0, lambda: None
    with pytest.raises(Unauthenticated):
        authenticator.authenticate(Credentials(token="a"))


def test_the_service_token_is_part_of_what_is_remembered(identity: Identity) -> None:
    authenticator = identity.authenticator()
    for service_token in ("", "s", "t", "s"):
        authenticator.authenticate(Credentials(token="a", service_token=service_token))
    assert len(identity.asked) == 3


def test_a_restricted_token_is_asked_about_for_every_request(identity: Identity) -> None:
    identity.answer = lambda: ValidToken(actor=ACTOR, expires_at=9999.0, is_restricted=True)
    authenticator = identity.authenticator()
    for _ in range(3):
        authenticator.authenticate(Credentials(token="a"))
    assert len(identity.asked) == 3


def test_an_unknown_token_is_refused_from_memory_for_a_short_time(identity: Identity) -> None:
    identity.answer = lambda: None
    authenticator = identity.authenticator()
    for now, asked in ((0.0, 1), (UNKNOWN_TOKEN_SECONDS - 0.1, 1), (UNKNOWN_TOKEN_SECONDS, 2)):
        identity.now = 1000.0 + now
        with pytest.raises(Unauthenticated):
            authenticator.authenticate(Credentials(token="a"))
        assert len(identity.asked) == asked


def test_with_keystone_down_known_tokens_pass_and_others_are_told_to_wait(
    identity: Identity,
) -> None:
    authenticator = identity.authenticator()
    authenticator.authenticate(Credentials(token="known"))
    identity.answer = down
    assert authenticator.authenticate(Credentials(token="known")) is ACTOR
    for _ in range(2):  # a failure is not remembered
        with pytest.raises(KeystoneUnavailable):
            authenticator.authenticate(Credentials(token="new"))
    assert identity.asked == ["known", "new", "new"]
    identity.answer = Identity().answer
    assert authenticator.authenticate(Credentials(token="new")) is ACTOR


def test_nothing_is_remembered_when_the_settings_say_so(identity: Identity) -> None:
    authenticator = identity.authenticator(seconds=0)
    authenticator.authenticate(Credentials(token="a"))
    identity.answer = lambda: None
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            authenticator.authenticate(Credentials(token="a"))
    assert len(identity.asked) == 3


def test_memory_is_bounded(identity: Identity) -> None:
    authenticator = identity.authenticator(entries=5)
    for number in range(50):
        authenticator.authenticate(Credentials(token=f"t{number}"))
    assert len(authenticator._known) == 5
    identity.answer = lambda: None
    for number in range(50):
        with pytest.raises(Unauthenticated):
            authenticator.authenticate(Credentials(token=f"u{number}"))
    assert len(authenticator._unknown) == 5


@dataclass
class SlowIdentity(Identity):
    """Keystone that answers when it is told to."""

    answers: threading.Event = field(default_factory=threading.Event)

    def validate(self, credentials: Credentials) -> ValidToken | None:
        self.asked.append(credentials.token)
        assert self.answers.wait(30.0)
        return self.answer()


@pytest.fixture
def slow() -> Iterator[SlowIdentity]:
    identity = SlowIdentity()
    yield identity
    identity.answers.set()


@contextmanager
def waiting_for(authenticator: KeystoneAuthenticator, *tokens: str) -> Iterator[list[object]]:
    """Let a thread for each token wait inside; yield what they get, complete at the end."""
    got: list[object] = []

    def ask(token: str) -> None:
        try:
            got.append(authenticator.authenticate(Credentials(token=token)))
        except HeadroomError as error:
            got.append(error.code)

    threads = [threading.Thread(target=ask, args=(token,)) for token in tokens]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: authenticator._flights._waiting == len(tokens), 30.0)
    yield got
    for thread in threads:
        thread.join()


def test_a_burst_with_one_new_token_asks_once(slow: SlowIdentity) -> None:
    authenticator = slow.authenticator()
    with waiting_for(authenticator, *["a"] * 8) as got:
        slow.answers.set()
    assert got == [ACTOR] * 8
    assert slow.asked == ["a"]
    assert not authenticator._flights._flights


def test_a_burst_shares_a_failure_too_and_the_next_one_asks_again(slow: SlowIdentity) -> None:
    slow.answer = down
    authenticator = slow.authenticator()
    with waiting_for(authenticator, *["a"] * 8) as got:
        slow.answers.set()
    assert got == ["token_unchecked"] * 8
    assert slow.asked == ["a"]
    slow.answer = Identity().answer
    assert authenticator.authenticate(Credentials(token="a")) is ACTOR


def test_beyond_those_that_may_wait_others_are_told_to_come_back(slow: SlowIdentity) -> None:
    slow.answers.set()
    authenticator = slow.authenticator(waiting=3)
    authenticator.authenticate(Credentials(token="known"))
    slow.answers.clear()
    with waiting_for(authenticator, "a", "b", "b") as got:
        for token in ("a", "c"):  # whether or not somebody asks about it already
            with pytest.raises(KeystoneUnavailable, match="too many") as refusal:
                authenticator.authenticate(Credentials(token=token))
            assert int(refusal.value.headers["Retry-After"]) >= 1
        assert authenticator.authenticate(Credentials(token="known")) is ACTOR
        slow.answers.set()
    assert got == [ACTOR] * 3
    assert sorted(slow.asked) == ["a", "b", "known"]
    assert authenticator.authenticate(Credentials(token="c")) is ACTOR


def test_who_waited_long_enough_is_let_go_and_the_late_answer_is_kept(slow: SlowIdentity) -> None:
    authenticator = slow.authenticator(timeout=0.01)
    for _ in range(2):
        with pytest.raises(KeystoneUnavailable, match="in time"):
            authenticator.authenticate(Credentials(token="a"))
    assert slow.asked == ["a"]
    slow.answers.set()
    assert wait_until(lambda: not authenticator._flights._flights, 30.0)
    assert authenticator.authenticate(Credentials(token="a")) is ACTOR
    assert slow.asked == ["a"]


def test_a_question_that_nobody_waits_for_any_more_is_not_asked(slow: SlowIdentity) -> None:
    authenticator = slow.authenticator(waiting=1, timeout=0.01)
    for token in ("a", "b"):  # the only thread is busy with the first
        with pytest.raises(KeystoneUnavailable):
            authenticator.authenticate(Credentials(token=token))
    slow.answers.set()
    assert wait_until(lambda: not authenticator._flights._flights, 30.0)
    assert slow.asked == ["a"]


def test_requests_with_one_restricted_token_do_not_share_answers_for_others(
    slow: SlowIdentity,
) -> None:
    slow.answer = lambda: ValidToken(actor=ACTOR, expires_at=9999.0, is_restricted=True)
    authenticator = slow.authenticator()
    got: list[Actor] = []

    def ask(path: str) -> None:
        got.append(authenticator.authenticate(Credentials(token="a", path=path)))

    threads = [threading.Thread(target=ask, args=(path,)) for path in ("/x", "/x", "/y", "/y")]
    for thread in threads:
        thread.start()
    assert wait_until(lambda: authenticator._flights._waiting == 4, 30.0)
    slow.answers.set()
    for thread in threads:
        thread.join()
    assert got == [ACTOR] * 4
    assert 2 <= len(slow.asked) <= 3  # the two that did not share may each ask, or share again
