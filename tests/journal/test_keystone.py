from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from config.launcher.processes import wait_until
from journal.actors import Actor
from journal.auth import Credentials, Unauthenticated
from journal.errors import NotReady
from journal.keystone import UNKNOWN_TOKEN_SECONDS, KeystoneAuthenticator, ValidToken

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

    def authenticator(self, *, seconds: int = 300, entries: int = 10) -> KeystoneAuthenticator:
        return KeystoneAuthenticator(
            self,
            challenge=CHALLENGE,
            cache_seconds=seconds,
            cache_entries=entries,
            clock=lambda: self.now,
        )


def down() -> ValidToken | None:
    raise NotReady("Keystone cannot be asked about the token")


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
        with pytest.raises(NotReady):
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


def test_a_burst_with_one_new_token_asks_once(identity: Identity) -> None:
    arrived: list[Actor] = []
    authenticator = identity.authenticator()

    def all_are_waiting() -> bool:
        return [flight.waiting for flight in authenticator._known._flights.values()] == [8]

    def answer_when_all_have_asked() -> ValidToken:
        assert wait_until(all_are_waiting, 30.0)
        return ValidToken(actor=ACTOR, expires_at=9999.0)

    def ask() -> None:
        arrived.append(authenticator.authenticate(Credentials(token="a")))

    identity.answer = answer_when_all_have_asked
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arrived == [ACTOR] * 8
    assert identity.asked == ["a"]
    assert not authenticator._known._flights
