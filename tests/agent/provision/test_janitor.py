"""What is removed of what was left behind, and what never is (spec hosts, B.11)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from headroom_host_agent.provision.janitor import (
    Fate,
    Host,
    Report,
    ServerKnowledge,
    cleanup_resources,
)
from headroom_host_agent.provision.stored import Artifact


def cleaned(  # a host in words
    answers: Mapping[str, ServerKnowledge | Exception],
    *,
    in_use: frozenset[str] = frozenset(),
    found: tuple[str, ...] = (),
    stuck: frozenset[str] = frozenset(),
    dry_run: bool = False,
    needs_confirmation: bool = False,
) -> tuple[Report, list[str]]:
    """Return the report of a host with these artefacts, and what was really removed."""
    gone: list[str] = []

    def ask(identity: str) -> ServerKnowledge:
        answer = answers[identity]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def remove(artifact: Artifact) -> None:
        if artifact.name in stuck:
            raise OSError("busy")
        gone.append(artifact.name)

    host = Host(
        registered=tuple(Artifact(name=name, kind="file", reservation_id=name) for name in answers),
        found=[("file", name) for name in (*answers, *found)],
        in_use=lambda artifact: artifact.name in in_use,
        ask=ask,
        remove=remove,
        needs_confirmation=needs_confirmation,
    )
    return cleanup_resources(host, dry_run=dry_run), gone


@pytest.mark.parametrize(
    ("is_in_use", "answer", "fate"),
    [
        (True, ServerKnowledge.GONE, Fate.KEEP),
        (False, ServerKnowledge.LIVE, Fate.KEEP),
        (False, ServerKnowledge.GOING, Fate.DELETE),
        (False, ServerKnowledge.GONE, Fate.DELETE),
        (False, ServerKnowledge.UNKNOWN, Fate.FLAG),
        (False, ServerKnowledge.NONE, Fate.KEEP),
        (False, OSError("cut"), Fate.KEEP),
    ],
)
def test_the_servers_word_decides(
    is_in_use: bool, answer: ServerKnowledge | Exception, fate: Fate
) -> None:
    in_use = frozenset({"12-1"} if is_in_use else ())

    report, gone = cleaned({"12-1": answer}, in_use=in_use)
    planned, untouched = cleaned({"12-1": answer}, in_use=in_use, dry_run=True)

    assert [finding.fate for finding in report.findings] == [fate]
    assert gone == list(report.removed) == (["12-1"] if fate == Fate.DELETE else [])
    assert (planned.findings, planned.removed, untouched) == (report.findings, (), [])


def test_what_this_agent_did_not_make_is_no_candidate() -> None:
    report, gone = cleaned({}, found=("backup", "12-1"))

    assert [(one.artifact.name, one.fate, one.reason) for one in report.findings] == [
        ("12-1", Fate.SKIP, "not made by this agent"),
        ("backup", Fate.SKIP, "not our naming"),
    ]
    assert gone == []


@pytest.mark.parametrize(
    ("of_all", "going", "removed"), [(1, 1, 1), (9, 2, 0), (10, 2, 2), (40, 5, 5), (40, 6, 0)]
)
def test_many_at_once_need_an_operator(of_all: int, going: int, removed: int) -> None:
    answers = {
        f"{n}-1": ServerKnowledge.GONE if n < going else ServerKnowledge.LIVE for n in range(of_all)
    }

    report, gone = cleaned(answers)

    assert len(gone) == removed
    assert bool(report.stopped) is (removed == 0)


def test_a_database_of_yesterday_removes_nothing() -> None:
    report, gone = cleaned({f"{n}-1": ServerKnowledge.UNKNOWN for n in range(5)})

    assert gone == []
    assert {finding.fate for finding in report.findings} == {Fate.FLAG}


def test_a_damaged_store_must_be_confirmed_first() -> None:
    report, gone = cleaned({"1-1": ServerKnowledge.GONE}, needs_confirmation=True)

    assert gone == []
    assert "nobody confirmed" in report.stopped


def test_one_that_cannot_go_stops_no_other() -> None:
    answers = {f"{n}-1": ServerKnowledge.GONE if n < 2 else ServerKnowledge.LIVE for n in range(10)}

    report, gone = cleaned(answers, stuck=frozenset({"0-1"}))

    assert gone == list(report.removed) == ["1-1"]
