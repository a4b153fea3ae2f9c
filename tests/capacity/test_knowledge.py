"""Facts beside the host table, from a file to the order of hosts (spec scheduling, 17.1)."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from capacity.models import KnowledgeName, Pipeline, SchedulingKnowledge
from capacity.nova.knowledge import current_knowledge
from capacity.nova.pipelines import active_pipelines, load_row
from journal.models import AuditEntry
from scheduling import knowledge as names
from scheduling.engine import schedule
from scheduling.knowledge import HostContention, HostUtilisation, Knowledge
from scheduling.record import record_run
from scheduling.resources import GIB
from scheduling.table import HostTable
from tests.domain.scheduling.worlds import ask

PIPELINE = "vmware-general-purpose-load-balancing"
UTILISATION = {
    host: {"memory_mb": 100 << 10, "used_memory_mb": used << 10, "vcpus": 100, "used_vcpus": 0}
    for host, used in (("full", 80), ("half", 50), ("empty", 0))
}
CALM = {host: {"avg_cpu_contention": 0, "max_cpu_contention": 0} for host in UTILISATION}
BUSY = {**CALM, "empty": {"avg_cpu_contention": 10.0, "max_cpu_contention": 10}}
EVERYTHING: dict[str, Any] = {
    names.HOST_UTILIZATION: UTILISATION,
    names.LONG_TERM_CONTENTION: CALM,
    names.SHORT_TERM_CONTENTION: CALM,
    names.PROJECT_NOISINESS: {"p": {"full": 40}},
}


def write(tmp_path: Path, content: object, name: str = "facts.json") -> str:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def run(content: object, **options: Any) -> None:
        call_command("import_knowledge", write(tmp_path, content), **options)

    return run


def order() -> list[str]:
    """Return the hosts of Nova's choice as the shipped VMware pipeline orders them."""
    pipeline = active_pipelines()[PIPELINE].pipeline
    request = ask(8, 4, hosts=tuple(UTILISATION))
    decision = schedule(HostTable.from_rows([]), request, pipeline, max_candidates=0)
    return [candidate.host_name for candidate in decision.top]


def weighers() -> list[str]:
    return [weigher.name for weigher in active_pipelines()[PIPELINE].pipeline.weighers]


def test_the_names_are_those_of_the_engine() -> None:
    assert set(KnowledgeName.values) == set(EVERYTHING)


@pytest.mark.django_db
def test_facts_arrive_in_the_units_of_the_engine(load: Any) -> None:
    load(EVERYTHING)
    assert current_knowledge() == Knowledge(
        utilisation={
            host: HostUtilisation(
                memory_bytes=100 * GIB, used_memory_bytes=used * GIB, vcpus=100, used_vcpus=0
            )
            for host, used in (("full", 80), ("half", 50), ("empty", 0))
        },
        long_term_contention={
            host: HostContention(average_percent=0.0, maximum_percent=0.0) for host in CALM
        },
        short_term_contention={
            host: HostContention(average_percent=0.0, maximum_percent=0.0) for host in CALM
        },
        noisiness={"p": {"full": 40.0}},
    )


@pytest.mark.django_db(transaction=True)
def test_vmware_weighers_act_from_the_next_request_on_and_stop_without_facts(load: Any) -> None:
    assert weighers() == []
    load({names.HOST_UTILIZATION: UTILISATION})
    assert weighers() == ["vmware_binpack"]
    assert order() == ["empty", "half", "full"], "spread: the multiplier is -1"
    load({names.SHORT_TERM_CONTENTION: BUSY})
    assert weighers() == ["vmware_binpack", "vmware_avoid_short_term_contended_hosts"]
    assert order() == ["half", "full", "empty"], "contention weighs more than room"
    load({names.SHORT_TERM_CONTENTION: {}, names.HOST_UTILIZATION: {}})
    assert weighers() == []
    SchedulingKnowledge.objects.all().delete()
    assert weighers() == []


@pytest.mark.django_db(transaction=True)
def test_a_decision_shows_what_the_facts_contributed(load: Any) -> None:
    load(EVERYTHING)
    pipeline = active_pipelines()[PIPELINE].pipeline
    record = record_run(HostTable.from_rows([]), ask(8, 4, hosts=tuple(UTILISATION)), pipeline)
    assert record.ordered_hosts[0] == "empty"
    shares = dict(record.top(1)[0].contributions)
    assert shares["vmware_binpack"] == pytest.approx(-0.0798, abs=1e-4)  # -tanh(8 of 100 GiB)
    assert "because of vmware_binpack" in record.text()


@pytest.mark.django_db(transaction=True)
def test_facts_past_their_time_count_as_missing(load: Any) -> None:
    load(EVERYTHING, valid_for=60)
    assert len(weighers()) == 3
    row = SchedulingKnowledge.objects.get(name=names.HOST_UTILIZATION)
    assert row.expires_at is not None
    assert timedelta(0) < row.expires_at - timezone.now() <= timedelta(seconds=60)
    SchedulingKnowledge.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert weighers() == []
    assert current_knowledge() == Knowledge()
    load(EVERYTHING)
    assert SchedulingKnowledge.objects.filter(expires_at=None).count() == 4


@pytest.mark.django_db(transaction=True)
def test_facts_are_read_once_for_all_pipelines(
    load: Any, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    load(EVERYTHING)
    row = Pipeline.objects.get(name=PIPELINE)
    row.pk, row.name = None, "another"
    row.save()
    with django_assert_num_queries(4):  # fingerprint, pipelines, facts, fingerprint again
        known = active_pipelines()
    for name in (PIPELINE, "another"):
        assert len(known[name].pipeline.weighers) == 3


@pytest.mark.django_db
def test_the_pipeline_says_which_facts_it_waits_for(load: Any) -> None:
    row = Pipeline.objects.get(name=PIPELINE)
    waiting = load_row(row).conditions
    assert waiting["Ready"][0]
    assert waiting["AllStepsReady"][1] == "SomeStepsNotReady"
    assert "knowledge host-utilization is missing" in waiting["AllStepsReady"][2]
    load(EVERYTHING)
    assert load_row(row).conditions["AllStepsReady"][0]


@pytest.mark.django_db
def test_an_import_replaces_what_it_names_and_audits_counts(load: Any, capsys: Any) -> None:
    load(EVERYTHING)
    load({names.LONG_TERM_CONTENTION: {"other": BUSY["empty"]}}, json=True)
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    change = {"name": names.LONG_TERM_CONTENTION, "before": 3, "after": 1}
    assert told == {"dry_run": False, "knowledge": [change]}
    known = current_knowledge()
    assert set(known.long_term_contention) == {"other"}
    assert set(known.utilisation) == set(UTILISATION)
    entry = AuditEntry.objects.filter(object_id=names.LONG_TERM_CONTENTION).latest("id")
    assert (entry.action, entry.actor) == ("knowledge_replaced", "command:import_knowledge")
    assert (entry.before, entry.after) == ({"entries": 3}, {"entries": 1, "expires_at": None})


@pytest.mark.django_db
def test_a_dry_run_tells_and_changes_nothing(load: Any, capsys: Any) -> None:
    load(EVERYTHING, dry_run=True)
    told = capsys.readouterr().out
    assert "dry run" in told
    assert "host-utilization: 0 -> 3 entries" in told
    assert not SchedulingKnowledge.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param("{", "not valid JSON", id="no JSON"),
        pytest.param([], "must be an object", id="a list"),
        pytest.param({"weather": {}}, "weather: is no knowledge", id="unknown name"),
        pytest.param(
            {names.HOST_UTILIZATION: []}, "host-utilization: must be an object", id="list of hosts"
        ),
        pytest.param(
            {names.HOST_UTILIZATION: {"h": {**UTILISATION["full"], "vcpus": -1}}},
            "host-utilization.h.vcpus: must be",
            id="negative count",
        ),
        pytest.param(
            {names.HOST_UTILIZATION: {"h": {"memory_mb": 1, "used_memory_mb": 1, "vcpus": 1}}},
            "host-utilization.h.used_vcpus: must be an integer",
            id="missing count",
        ),
        pytest.param(
            {names.HOST_UTILIZATION: {"h": {**UTILISATION["full"], "memory_mb": 1 << 50}}},
            "host-utilization.h.memory_mb: must be",
            id="more memory than there is",
        ),
        pytest.param(
            {names.LONG_TERM_CONTENTION: {"h": {"avg_cpu_contention": 1}}},
            "vmware-long-term-contended-hosts.h.max_cpu_contention: must be a number",
            id="missing percentage",
        ),
        pytest.param(
            {names.PROJECT_NOISINESS: {"p": {"h": -0.5}}},
            "vmware-project-noisiness.p.h: must be 0 or more",
            id="negative percentage",
        ),
        pytest.param(
            {names.PROJECT_NOISINESS: {"p": {"h": True}}},
            "vmware-project-noisiness.p.h: must be a number",
            id="no number",
        ),
    ],
)
def test_a_malformed_file_changes_nothing(
    load: Any, tmp_path: Path, content: object, words: str
) -> None:
    good = write(tmp_path, {names.SHORT_TERM_CONTENTION: CALM}, "good.json")
    bad = write(tmp_path, content, "bad.json")
    with pytest.raises(CommandError) as caught:
        call_command("import_knowledge", good, bad)
    assert words in str(caught.value)
    assert caught.value.returncode == 2
    assert not SchedulingKnowledge.objects.exists()


@pytest.mark.django_db
def test_missing_files_doubles_and_odd_times_are_refused(load: Any, tmp_path: Path) -> None:
    path = write(tmp_path, {names.SHORT_TERM_CONTENTION: CALM})
    for arguments, options, words in (
        ((str(tmp_path / "absent.json"),), {}, "No such file"),
        ((path, path), {}, "is given twice"),
        ((path,), {"valid_for": 0}, "--valid-for"),
        ((path,), {"valid_for": 10**12}, "--valid-for"),
    ):
        with pytest.raises(CommandError, match=words):
            call_command("import_knowledge", *arguments, **options)
    assert not SchedulingKnowledge.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_damaged_row_counts_as_missing_and_takes_no_pipeline_with_it(load: Any) -> None:
    load(EVERYTHING)
    SchedulingKnowledge.objects.filter(name=names.HOST_UTILIZATION).update(facts={"h": 1})
    assert weighers() == [
        "vmware_avoid_long_term_contended_hosts",
        "vmware_avoid_short_term_contended_hosts",
    ]
    with pytest.raises(IntegrityError), transaction.atomic():
        SchedulingKnowledge.objects.create(name="weather")
