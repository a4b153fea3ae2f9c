"""Pipelines that several connections change: what runs is always what is committed."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.db import connection, transaction

from capacity.models import Pipeline, SchedulingKnowledge
from capacity.nova.knowledge import current_knowledge, replace_knowledge
from capacity.nova.pipelines import active_pipelines, remove_pipeline, save_pipeline
from journal.actors import Actor
from scheduling import knowledge as names
from scheduling.pipelines import PipelineSpec, StepParam, StepSpec
from tests.concurrency.test_change_races import on_own_connection

pytestmark = pytest.mark.django_db(transaction=True)

OPERATOR = Actor(name="operator")
NAMES = tuple(f"pipeline-{number}" for number in range(4))
WRITERS, CHANGES = 3, 20


def spec(name: str, excluded: str) -> PipelineSpec:
    excluding = StepParam(key="excludedHosts", strings=(excluded,))
    return PipelineSpec(
        name=name, filters=(StepSpec(name="filter_exclude_hosts", params=(excluding,)),)
    )


def committed() -> dict[str, int]:
    return dict(Pipeline.objects.filter(name__in=NAMES).values_list("name", "version"))


def in_use() -> dict[str, int]:
    return {name: active.version for name, active in active_pipelines().items() if name in NAMES}


def test_active_pipelines_equal_the_rows_after_any_changes_of_concurrent_writers() -> None:
    def write(seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - a reproducible load, nothing secret
        for _ in range(CHANGES):
            name = rng.choice(NAMES)
            if rng.random() < 0.2:
                remove_pipeline(name=name, actor=OPERATOR, request_id="race")
            elif rng.random() < 0.3:
                with transaction.atomic():
                    Pipeline.objects.filter(name=name).update(version=999)
                    transaction.set_rollback(True)
            else:
                save_pipeline(
                    spec(name, f"h{rng.randint(1, 9)}"), actor=OPERATOR, request_id="race"
                )

    for round_number in range(5):
        seeds = range(round_number * WRITERS, (round_number + 1) * WRITERS)
        with ThreadPoolExecutor(WRITERS) as pool:
            running = [pool.submit(on_own_connection, lambda s=seed: write(s)) for seed in seeds]
            while not all(future.done() for future in running):
                assert 999 not in in_use().values()
            for future in running:
                future.result()
        assert in_use() == committed()
    assert committed()


def test_late_commit_of_an_older_transaction_is_not_missed() -> None:
    for name in NAMES[:2]:
        save_pipeline(spec(name, "h1"), actor=OPERATOR, request_id="race")
    has_written, may_commit = Event(), Event()

    def write_late() -> None:
        with transaction.atomic():
            Pipeline.objects.filter(name=NAMES[0]).update(version=7)
            has_written.set()
            assert may_commit.wait(30)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(on_own_connection, write_late)
        assert has_written.wait(30)
        Pipeline.objects.filter(name=NAMES[1]).update(version=9)
        assert in_use() == {NAMES[0]: 1, NAMES[1]: 9}
        may_commit.set()
        late.result()
    assert in_use() == {NAMES[0]: 7, NAMES[1]: 9}


def test_older_transaction_that_overwrites_what_younger_ones_wrote_is_not_missed() -> None:
    """Its number lies between theirs, so the sum of the numbers stays as it was."""
    for name in NAMES[:2]:
        save_pipeline(spec(name, "h1"), actor=OPERATOR, request_id="race")
    rows = Pipeline.objects.filter(name__in=NAMES[:2])
    began, may_write, number = Event(), Event(), []

    def overwrite_late() -> None:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_current_xact_id()::text::bigint")
                number.extend(cursor.fetchone())
            began.set()
            assert may_write.wait(30)
            rows.update(version=7)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(on_own_connection, overwrite_late)
        assert began.wait(30)
        rows.filter(name=NAMES[1]).update(version=9)
        young = rows.values_list("changed_xid", flat=True).get(name=NAMES[1])
        with connection.cursor() as cursor:  # as one that began as long before the late one did
            cursor.execute("ALTER TABLE capacity_pipeline DISABLE TRIGGER USER")
            rows.filter(name=NAMES[0]).update(changed_xid=2 * number[0] - young)
            cursor.execute("ALTER TABLE capacity_pipeline ENABLE TRIGGER USER")
        assert in_use() == {NAMES[0]: 1, NAMES[1]: 9}
        may_write.set()
        late.result()
    assert in_use() == {NAMES[0]: 7, NAMES[1]: 7}


VMWARE = "vmware-general-purpose-load-balancing"


def contention(percent: int) -> dict[str, object]:
    figures = {"avg_cpu_contention": percent, "max_cpu_contention": percent}
    return {
        names.LONG_TERM_CONTENTION: {"h": figures},
        names.SHORT_TERM_CONTENTION: {"h": figures},
    }


def bring(percent: int) -> None:
    replace_knowledge(contention(percent), actor=OPERATOR, request_id="race")


def contended_percents() -> set[float]:
    """Return what pipelines in use go by: the average of both kinds of contention on a host."""
    known = current_knowledge()
    kinds = (known.long_term_contention, known.short_term_contention)
    return {kind["h"].average_percent for kind in kinds if kind}


def weigher_count() -> int:
    return len(active_pipelines()[VMWARE].pipeline.weighers)


def test_knowledge_of_concurrent_writers_is_never_mixed() -> None:
    for _ in range(5):
        SchedulingKnowledge.objects.all().delete()
        assert weigher_count() == 0
        with ThreadPoolExecutor(4) as pool:
            running = [
                pool.submit(on_own_connection, lambda one=percent: bring(one))
                for percent in range(1, 9)
            ]
            while not all(future.done() for future in running):
                with transaction.atomic():
                    assert len(contended_percents()) <= 1
            for future in running:
                future.result()
        assert contended_percents() <= set(map(float, range(1, 9)))
        assert weigher_count() == 2


def test_knowledge_that_is_committed_late_is_not_missed() -> None:
    has_written, may_commit = Event(), Event()

    def write_late() -> None:
        with transaction.atomic():
            SchedulingKnowledge.objects.create(
                name=names.SHORT_TERM_CONTENTION, facts=contention(1)[names.SHORT_TERM_CONTENTION]
            )
            has_written.set()
            assert may_commit.wait(30)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(on_own_connection, write_late)
        assert has_written.wait(30)
        replace_knowledge(
            {names.LONG_TERM_CONTENTION: contention(2)[names.LONG_TERM_CONTENTION]},
            actor=OPERATOR,
            request_id="race",
        )
        assert weigher_count() == 1
        may_commit.set()
        late.result()
    assert weigher_count() == 2
