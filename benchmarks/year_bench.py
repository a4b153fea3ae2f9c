"""``bench year``: what a region keeps on disk in a year, what forgetting costs, and a restore.

The past is written day by day; after each day the tasks that forget run as of that day, and once a
week what autovacuum's default thresholds would have begun: it has less time here than in a year.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from django.db import connection
from rich.console import Console

from benchmarks.bench_region import empty_database
from benchmarks.measures import ROOT, Measure, measure, percentile
from benchmarks.pages_region import ACCOUNTS, import_generated, work_once
from benchmarks.placement_worlds import OWN_TABLES
from benchmarks.year_past import (
    DROP_HELPERS,
    HELPERS,
    KINDS,
    Past,
    Region,
    first_day,
    rows_of,
    write_other_hours,
)
from capacity.figures.history import keep_history
from capacity.tasks import prune_decisions
from commitments.tasks import prune_usage_history
from config.launcher.binaries import find_postgres
from config.launcher.places import this_checkout
from core.jobs import Run
from core.tasks import prune as prune_journal
from failover.tasks import forget as forget_failover
from hosts.models import Host, Instance
from journal.actors import task_actor
from journal.clock import database_now
from placement.tasks import keep_history as keep_placement_history

HOSTS: Final = 3_000
QUICK_HOSTS: Final = 50
#: Days after which is looked at the disk, and what they are called.
LOOKS: Final = {91: "3 months", 182: "6 months", 365: "12 months"}
QUICK_LOOKS: Final = {10: "10 days", 20: "20 days", 30: "30 days"}
#: So often, in days, whatever is due for autovacuum is vacuumed; the server's own is beside it.
VACUUM_DAYS: Final = 7
#: Tables whose rows are kept for less than half a year.
LEVEL: Final = (
    "capacity_hosthistory",
    "capacity_hostlisting",
    "capacity_schedulingdecision",
    "commitments_compactionrun",
    "commitments_refusedchange",
    "commitments_syncrun",
    "failover_evacuationmove",
    "failover_failoverevent",
    "failover_failoverrun",
    "failover_failuredrill",
    "journal_loggedchange",
    "journal_outbox",
    "placement_allocation_event",
)
#: The others that days add to.
GROWING: Final = (
    "capacity_capacityhistory",
    "commitments_assignmentperiod",
    "commitments_commitmentevent",
    "commitments_commitmenthour",
    "journal_auditentry",
)
MOST_GROWTH: Final = 1.2
#: Smaller tables are told of together.
LEAST_SHARE: Final = 0.002
MIB: Final = 1 << 20

SIZES: Final = """
SELECT coalesce(pg_partition_root(rel.oid)::regclass, rel.oid::regclass)::text AS name,
       sum(pg_total_relation_size(rel.oid)), sum(coalesce(stat.n_dead_tup, 0)),
       count(*) FILTER (WHERE rel.relkind = 'r')
  FROM pg_class rel LEFT JOIN pg_stat_user_tables stat ON stat.relid = rel.oid
 WHERE rel.relkind IN ('r', 'p') AND rel.relnamespace = 'public'::regnamespace
   AND NOT starts_with(rel.relname, 'bench_')
 GROUP BY 1
"""
#: Autovacuum's defaults.
DUE_FOR_VACUUM: Final = """
SELECT stat.relname FROM pg_stat_user_tables stat JOIN pg_class rel ON rel.oid = stat.relid
 WHERE stat.n_dead_tup > 50 + 0.2 * greatest(rel.reltuples, 0)
    OR stat.n_ins_since_vacuum > 1000 + 0.2 * greatest(rel.reltuples, 0)
"""
TASKS: Final[Mapping[str, Any]] = {  # Any: Celery has no types
    "journal.prune": prune_journal,
    "commitments.prune_usage_history": prune_usage_history,
    "capacity.prune_decisions": prune_decisions,
    "failover.forget_old": forget_failover,
    "placement.keep_history": keep_placement_history,
}
CAPACITY_HISTORY: Final = "capacity.keep_history"


@dataclass(slots=True, kw_only=True)
class Costs:
    """Seconds of each day, by task and by table that was vacuumed."""

    tasks: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    vacuums: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDisk:
    """A table with its indexes, partitions and what lies beside it."""

    size: int
    dead: int
    parts: int


def run(*, is_quick: bool, sizes: Sequence[int] = ()) -> list[Measure]:
    """Let a year pass in a region of 3,000 hosts, or in those of the sizes given."""
    rows: list[Measure] = []
    for hosts in tuple(sizes) or (QUICK_HOSTS if is_quick else HOSTS,):
        rows += _year(hosts, QUICK_LOOKS if is_quick else LOOKS)
    return rows


def _year(hosts: int, looks: Mapping[int, str]) -> list[Measure]:
    label = f"{hosts} hosts"
    region = _region(hosts)
    Console().print(f"region of {hosts} hosts: {region}")
    rows = [measure("failover slots", label, region.slots, "")]
    rows += [
        measure(f"a day's rows: {kind.name}", label, rows_of(kind, region), "rows")
        for kind in KINDS
    ]
    seen: dict[str, dict[str, OnDisk]] = {}
    costs = Costs()
    days = max(looks)
    past, begin = Past(region), first_day(days, database_now())
    for number in range(days):
        day = begin + timedelta(days=number)
        _pass_day(past, day, number, costs, min(look - number for look in looks if look > number))
        if number % 30 == 0:
            Console().print(f"  day {number}")
        if number + 1 in looks:
            at = looks[number + 1]
            seen[at] = _sizes()
            rows.append(measure("database", f"{label}, {at}", _database_size() / MIB, "MiB"))
            Console().print(f"  {at}: {_database_size() / MIB:.0f} MiB")
    rows += _tables(label, seen)
    rows += _costs(label, costs, begin + timedelta(days=days))
    with connection.cursor() as cursor:
        cursor.execute(DROP_HELPERS)
    rows += _restored(label)
    return rows


def _region(hosts: int) -> Region:
    """Replace everything in the database by a region that services worked on once."""
    empty_database()
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(OWN_TABLES)} CASCADE")
    import_generated(hosts)
    work_once()
    with connection.cursor() as cursor:
        cursor.execute(ACCOUNTS)
        cursor.execute(HELPERS)
        counts = []
        for words in (
            "FROM commitments_commitmentaccount",
            "FROM bench_run",
            "FROM bench_slot",
        ):
            cursor.execute(f"SELECT count(*) {words}")
            counts.append(int((cursor.fetchone() or (0,))[0]))
        cursor.execute("VACUUM ANALYZE")
        cursor.execute("SET synchronous_commit = off")
    return Region(
        hosts=Host.objects.count(),
        vms=Instance.objects.filter(host__isnull=False).count(),
        zones=counts[1],
        commitments=counts[0],
        slots=counts[2],
    )


def _pass_day(past: Past, day: datetime, number: int, costs: Costs, days_to_look: int) -> None:
    """Write a day, then do what is done in it; tasks see its end."""
    with _timed(costs.tasks[CAPACITY_HISTORY]):
        keep_history(now=day)
    write_other_hours(day)
    past.write_day(day, number, days_to_look)
    now = day + timedelta(days=1)
    for name, task in TASKS.items():
        with _timed(costs.tasks[name]):
            _run_at(task, name, now)
    if number % VACUUM_DAYS and days_to_look > 1:
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
        cursor.execute(DUE_FOR_VACUUM)
        due = [row[0] for row in cursor.fetchall()]
        for table in due:
            with _timed(costs.vacuums[table]):
                cursor.execute(f"VACUUM (ANALYZE) {table}")


def _run_at(task: Any, name: str, now: datetime) -> object:  # Any: as in TASKS
    """Run a task as of a moment."""
    work: Callable[[Run], object] = inspect.unwrap(task.run)
    return work(Run(actor=task_actor(name), request_id="bench", now=now))


@contextmanager
def _timed(taken: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    taken.append(time.perf_counter() - began)


def _sizes() -> dict[str, OnDisk]:
    with connection.cursor() as cursor:
        cursor.execute(SIZES)
        return {
            name: OnDisk(size=int(size), dead=int(dead), parts=int(parts))
            for name, size, dead, parts in cursor.fetchall()
        }


def _database_size() -> int:
    """Return the size of all our tables, without what this benchmark looks things up in."""
    return sum(one.size for one in _sizes().values())


def _tables(label: str, seen: Mapping[str, Mapping[str, OnDisk]]) -> Iterator[Measure]:
    looks = list(seen)
    last = seen[looks[-1]]
    whole, rest = sum(one.size for one in last.values()), 0
    for name in sorted(last, key=lambda name: -last[name].size):
        if name not in {*LEVEL, *GROWING} or last[name].size < whole * LEAST_SHARE:
            rest += last[name].size
            continue
        for look in looks:
            size = seen[look][name].size / MIB
            most = None
            if name in LEVEL and look == "12 months":
                most = MOST_GROWTH * seen[looks[-2]][name].size / MIB
            yield measure(f"{name}, size", f"{label}, {look}", size, "MiB", at_most=most)
        yield measure(f"{name}, rows", f"{label}, {looks[-1]}", _count(name), "rows")
        yield measure(f"{name}, dead rows", f"{label}, {looks[-1]}", last[name].dead, "rows")
        if last[name].parts > 1:
            yield measure(f"{name}, partitions", f"{label}, {looks[-1]}", last[name].parts, "")
    yield measure("all other tables", f"{label}, {looks[-1]}", rest / MIB, "MiB")


def _count(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - names of our tables
        return int((cursor.fetchone() or (0,))[0])


def _costs(label: str, costs: Costs, now: datetime) -> Iterator[Measure]:
    for name, taken in costs.tasks.items():
        recent = taken[-30:]
        yield measure(f"{name}, a day's, p50", label, percentile(recent, 0.5), "s")
        yield measure(f"{name}, a day's, slowest", label, max(recent), "s")
        if name in TASKS:
            again: list[float] = []
            with _timed(again):
                _run_at(TASKS[name], name, now)
            yield measure(f"{name}, nothing to forget", label, again[0] * 1000, "ms")
    slowest = sorted(costs.vacuums.items(), key=lambda pair: -max(pair[1]))
    for table, taken in slowest[:5]:
        yield measure(f"VACUUM of {table}, slowest", label, max(taken), "s")
    whole: list[float] = []
    with _timed(whole), connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE)")
    yield measure("VACUUM of everything", label, whole[0], "s")


def documented_sql() -> str:
    """Return what is to be run after a restore, as the manual has it."""
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    section = page.partition("## Backup and restore")[2].partition("\n## ")[0]
    found = re.search(r"```sql\n(.*?)```", section, re.DOTALL)
    if found is None:
        raise RuntimeError("the manual has no SQL for after a restore")
    return found[1]


def _restored(label: str) -> Iterator[Measure]:
    """Dump the database, restore it as another one, and start on that."""
    programs = find_postgres(this_checkout(), os.environ).programs
    source = os.environ["DATABASE_URL"]
    name = f"{connection.settings_dict['NAME']}_restored"
    target = re.sub(r"(/)[^/?]+(\?|$)", rf"\g<1>{name}\g<2>", source, count=1)
    jobs = str(os.cpu_count() or 1)
    with tempfile.TemporaryDirectory(dir=ROOT / ".local") as folder:
        dump = Path(folder) / "dump"
        yield _program(
            "pg_dump",
            label,
            [programs / "pg_dump", "--format=directory", f"--jobs={jobs}", "-f", dump, source],
        )
        size = sum(path.stat().st_size for path in dump.iterdir())
        yield measure("size of the dump", label, size / MIB, "MiB")
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")
            cursor.execute(f"CREATE DATABASE {name}")
        try:
            yield _program(
                "pg_restore", label, [programs / "pg_restore", f"--jobs={jobs}", "-d", target, dump]
            )
            yield _program(
                "SQL after a restore",
                label,
                [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-c", documented_sql(), target],
            )
            yield _program("ANALYZE", label, [programs / "psql", "-qc", "ANALYZE", target])
            for piece in ("capacity", "usage_again"):
                yield from _first(piece, label, target)
        finally:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _program(words: str, label: str, command: Sequence[str | Path]) -> Measure:
    taken: list[float] = []
    with _timed(taken):
        subprocess.run([str(one) for one in command], check=True)  # noqa: S603 - ours
    return measure(words, label, taken[0], "s")


def _first(piece: str, label: str, database: str) -> Iterator[Measure]:
    """Do a piece of work of ``bench scale`` in a process that begins on the restored database."""
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "benchmarks.scale_work", piece],
        stdout=subprocess.PIPE,
        check=True,
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database},
    )
    for figure in json.loads(done.stdout)["measures"]:
        if not figure["metric"].endswith(", CPU"):
            yield measure(f"restored: {figure['metric']}", label, figure["value"], figure["unit"])
