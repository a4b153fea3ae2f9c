from __future__ import annotations

import pytest

from journal.token_cache import TokenCache, cache_key


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_entry_is_found_until_its_moment(clock: Clock) -> None:
    cache: TokenCache[str] = TokenCache(10, clock)
    cache.put(b"a", "known", until=1010.0)
    clock.now = 1009.9
    assert cache.get(b"a") == "known"
    clock.now = 1010.0
    assert cache.get(b"a") is None
    assert len(cache) == 0


def test_an_entry_that_is_over_already_is_not_kept(clock: Clock) -> None:
    cache: TokenCache[str] = TokenCache(10, clock)
    cache.put(b"a", "known", until=1000.0)
    assert len(cache) == 0


def test_the_least_recently_used_entry_goes_when_it_is_full(clock: Clock) -> None:
    cache: TokenCache[int] = TokenCache(3, clock)
    for number in range(3):
        cache.put(bytes([number]), number, until=2000.0)
    assert cache.get(b"\x00") == 0
    cache.put(b"\x03", 3, until=2000.0)
    assert [cache.get(bytes([number])) for number in range(4)] == [0, None, 2, 3]
    assert len(cache) == 3


def test_a_key_does_not_contain_its_token_and_tells_tokens_apart() -> None:
    assert cache_key("secret") != cache_key("secret", "")
    assert cache_key("a", "b") != cache_key("ab")
    assert cache_key("a", "b") != cache_key("b", "a")
    assert b"secret" not in cache_key("secret")
