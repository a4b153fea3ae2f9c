"""What results of agents do to workloads (spec hosts, D.8)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.domain.workloads import (
    OPEN,
    Known,
    Refusal,
    ResultKind,
    Told,
    Verdict,
    WorkloadState,
    judge,
)

S, K = WorkloadState, ResultKind


def known(state: WorkloadState, results: dict[ResultKind, str] | None = None) -> Known:
    stored = results or {}
    first = {"A": "ok", "E": "error"}.get(stored.get(K.RESULT, ""), "")
    return Known(state=state, attempt=2, fence_epoch=3, results=stored, first_state=first)


def told(state: str, digest: str, *, attempt: int = 2, epoch: int = 3) -> Told:
    return Told(attempt=attempt, fence_epoch=epoch, state=state, digest=digest)


OK, ERROR, GONE = told("ok", "A"), told("error", "E"), told("deleted", "D")
TABLE = [
    ("ok of pending", known(S.PENDING), OK, (S.DEPLOYED, K.RESULT, None)),
    ("ok of dispatched", known(S.DISPATCHED), OK, (S.DEPLOYED, K.RESULT, None)),
    ("ok of deleting", known(S.DELETING), OK, (S.DELETING, K.RESULT, None)),
    ("error of deleting", known(S.DELETING), ERROR, (S.DELETING, K.RESULT, None)),
    ("error of pending", known(S.PENDING), ERROR, (S.FAILED, K.RESULT, None)),
    ("error of dispatched", known(S.DISPATCHED), ERROR, (S.FAILED, K.RESULT, None)),
    ("later death", known(S.DEPLOYED, {K.RESULT: "A"}), ERROR, (S.FAILED, K.DEATH, None)),
    ("ok of lost", known(S.LOST), OK, (S.DEPLOYED, K.RESULT, None)),
    ("deleted of pending", known(S.PENDING), GONE, (S.DELETED, K.DELETED, None)),
    ("deleted of deployed", known(S.DEPLOYED, {K.RESULT: "A"}), GONE, (S.DELETED, K.DELETED, None)),
    ("deleted of deleting", known(S.DELETING), GONE, (S.DELETED, K.DELETED, None)),
    ("same ok", known(S.DEPLOYED, {K.RESULT: "A"}), OK, (S.DEPLOYED, None, None)),
    (
        "same ok after a death",
        known(S.FAILED, {K.RESULT: "A", K.DEATH: "E"}),
        OK,
        (S.FAILED, None, None),
    ),
    ("same death", known(S.FAILED, {K.RESULT: "A", K.DEATH: "E"}), ERROR, (S.FAILED, None, None)),
    ("same error", known(S.FAILED, {K.RESULT: "E"}), ERROR, (S.FAILED, None, None)),
    ("same deletion", known(S.DELETED, {K.DELETED: "D"}), GONE, (S.DELETED, None, None)),
    (
        "same ok of an older attempt",
        known(S.PENDING, {K.RESULT: "A"}),
        told("ok", "A", attempt=1),
        (S.PENDING, None, None),
    ),
    (
        "same ok of an older epoch",
        known(S.DEPLOYED, {K.RESULT: "A"}),
        told("ok", "A", epoch=2),
        (S.DEPLOYED, None, None),
    ),
    (
        "other ok",
        known(S.DEPLOYED, {K.RESULT: "A"}),
        told("ok", "B"),
        (S.DEPLOYED, None, Refusal.CONFLICT),
    ),
    ("ok after an error", known(S.FAILED, {K.RESULT: "E"}), OK, (S.FAILED, None, Refusal.CONFLICT)),
    (
        "other error",
        known(S.FAILED, {K.RESULT: "E"}),
        told("error", "F"),
        (S.FAILED, None, Refusal.CONFLICT),
    ),
    (
        "other death",
        known(S.FAILED, {K.RESULT: "A", K.DEATH: "E"}),
        told("error", "F"),
        (S.FAILED, None, Refusal.CONFLICT),
    ),
    (
        "older attempt",
        known(S.PENDING),
        told("ok", "A", attempt=1),
        (S.PENDING, None, Refusal.SUPERSEDED),
    ),
    (
        "attempt that was never asked",
        known(S.PENDING),
        told("ok", "A", attempt=3),
        (S.PENDING, None, Refusal.SUPERSEDED),
    ),
    ("older epoch", known(S.PENDING), told("ok", "A", epoch=2), (S.PENDING, None, Refusal.STALE)),
    (
        "epoch that never was",
        known(S.PENDING),
        told("ok", "A", epoch=4),
        (S.PENDING, None, Refusal.STALE),
    ),
]


@pytest.mark.parametrize(
    ("before", "result", "expected"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_row_of_the_table(
    before: Known, result: Told, expected: tuple[WorkloadState, ResultKind | None, Refusal | None]
) -> None:
    state, kind, refusal = expected
    assert judge(before, result) == Verdict(state=state, kind=kind, refusal=refusal)


ANYTHING = st.builds(
    Told,
    attempt=st.integers(1, 3),
    fence_epoch=st.integers(2, 4),
    state=st.sampled_from(("ok", "error", "deleted")),
    digest=st.sampled_from("ABEFD"),
)


@given(st.sampled_from(S), st.lists(ANYTHING, max_size=8))
def test_any_sequence_stores_each_kind_once_and_never_leaves_deletion(
    start: WorkloadState, results: list[Told]
) -> None:
    stored: dict[int, dict[ResultKind, str]] = {}
    firsts: dict[int, str] = {}
    state = start
    for one in results:
        before = Known(
            state=state,
            attempt=2,
            fence_epoch=3,
            results=dict(stored.get(one.attempt, {})),
            first_state=firsts.get(one.attempt, ""),
        )
        verdict = judge(before, one)
        if verdict.kind is None:
            assert verdict.state == state
            continue
        assert verdict.refusal is None
        assert one.attempt == 2
        assert one.fence_epoch == 3
        assert verdict.kind not in before.results
        stored.setdefault(2, {})[verdict.kind] = one.digest
        if verdict.kind is K.RESULT:
            firsts[2] = one.state
        if state in (S.DELETING, S.DELETED):
            assert verdict.state in (S.DELETING, S.DELETED)
        assert verdict.state not in OPEN
        state = verdict.state
        assert judge(
            Known(
                state=state,
                attempt=2,
                fence_epoch=3,
                results=stored[2],
                first_state=firsts.get(2, ""),
            ),
            one,
        ) == Verdict(state=state)
