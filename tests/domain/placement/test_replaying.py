from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from placement.domain.replaying import EVERYTHING, Subject, sendable

ROOTS = st.frozensets(st.integers(EVERYTHING, 4), max_size=2)
CONSUMERS = st.frozensets(st.sampled_from("abcd"), max_size=2)
SUBJECTS = st.lists(st.tuples(ROOTS, CONSUMERS), max_size=12)


def share(one: Subject, other: Subject) -> bool:
    """Say it slowly: names of all trees concern whatever concerns anything."""
    if EVERYTHING in one.roots | other.roots:
        return all(subject.roots or subject.consumers for subject in (one, other))
    return bool(one.roots & other.roots or one.consumers & other.consumers)


@given(SUBJECTS, st.data())
def test_nothing_overtakes_what_it_shares_anything_with(
    found: list[tuple[frozenset[int], frozenset[str]]], data: st.DataObject
) -> None:
    subjects = [
        Subject(number=number, roots=roots, consumers=consumers)
        for number, (roots, consumers) in enumerate(found)
    ]
    busy: list[Subject] = []
    waiting = list(subjects)
    while waiting or busy:
        chosen = sendable(waiting, busy, limit=3)
        assert chosen or busy, "it comes to an end"
        for subject in chosen:
            earlier = [one for one in (*waiting, *busy) if one.number < subject.number]
            assert not any(share(one, subject) for one in earlier)
        waiting = [one for one in waiting if one not in chosen]
        busy += chosen
        done = data.draw(st.sampled_from(busy))
        busy.remove(done)


def test_what_is_refused_holds_only_those_that_share_with_it() -> None:
    refused, same, other = (
        Subject(number=number, roots=frozenset({root}))
        for number, root in enumerate((1, 1, 2), start=1)
    )
    assert sendable([same, other], [refused], limit=9) == [other]
