"""What waits to be written, batch by batch: read in one snapshot, sent, noted.

Within a batch each object is written once, by one thread; the next batch begins when all is noted.
So writes of an object are in the order of its changes. Nothing is sent inside a transaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import orjson
import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from bridge.clusters import cluster_names, cluster_of, naming, open_client
from bridge.domain.kinds import ObjectKind
from bridge.domain.objects import Rendered
from bridge.domain.writing import Known, backoff_seconds, rest_seconds
from bridge.kube.client import ObjectRefused
from bridge.kube.login import ClusterUnavailable
from bridge.kube.objects import Writer
from bridge.metrics import DRIFTS, ERRORS, WRITES
from bridge.models import MirrorState
from bridge.selectors import Readable, render_rows
from core.changes import one_snapshot
from journal.leases import check_leases
from journal.statements import execute

log = structlog.get_logger(__name__)

NO_CLUSTER: Final = "no cluster of HEADROOM_BRIDGE__CLUSTERS gets this zone"
LONGEST_PAUSE_SECONDS: Final = 30.0
_FIELDS: Final = {
    "state_id": "id",
    "wanted": "wanted",
    "kind": "kind",
    "source_id": "source_id",
    "cluster": "cluster",
    "name": "name",
    "spec_digest": "spec_digest",
    "status_digest": "status_digest",
    "resource_version": "resource_version",
    "generation": "object_generation",
    "observed": "observed_generation",
    "reason": "reason",
    "is_first": "is_first",
    "failures": "failures",
    "drifts": "drifts",
    "is_suspect": "is_suspect",
    "adopted": "adopted",
    "transitions": "transitions",
}
_NOTE: Final = """
UPDATE bridge_mirrorstate AS state
   SET is_due = state.wanted <> new.wanted OR new.is_due,
       due_at = CASE WHEN state.wanted <> new.wanted OR NOT new.is_due THEN state.due_at
                     ELSE statement_timestamp() + make_interval(secs => new.pause_seconds) END,
       part_ids = new.part_ids, cluster = new.cluster, name = new.name,
       spec_digest = new.spec_digest, status_digest = new.status_digest,
       resource_version = new.resource_version, object_generation = new.generation,
       observed_generation = new.observed, reason = new.reason, is_first = new.is_first,
       failures = new.failures, error = new.error, drifts = new.drifts,
       is_suspect = new.is_suspect, transitions = new.transitions,
       adopted = nullif(new.adopted, 'null'::jsonb),
       drifted_at = CASE WHEN new.is_left THEN coalesce(state.drifted_at, statement_timestamp())
                         WHEN new.is_due THEN state.drifted_at END,
       written_at = CASE WHEN new.is_written THEN statement_timestamp() ELSE state.written_at END
  FROM jsonb_to_recordset(%s::jsonb) AS new (
       state_id bigint, wanted bigint, is_due boolean, pause_seconds integer, part_ids bigint[],
       cluster text, name text, spec_digest text, status_digest text, resource_version text,
       generation bigint, observed bigint, reason text, is_first boolean, failures integer,
       error text, drifts integer, is_suspect boolean, adopted jsonb, transitions jsonb,
       is_left boolean, is_written boolean)
 WHERE state.id = new.state_id
"""
_FORGET: Final = """
DELETE FROM bridge_mirrorstate AS state
 USING jsonb_to_recordset(%s::jsonb) AS gone (state_id bigint, wanted bigint)
 WHERE state.id = gone.state_id AND state.wanted = gone.wanted
"""


@dataclass(slots=True)
class Way:
    """A cluster while it is in use, and how it has been of late."""

    name: str
    writer: Writer | None = None
    failures: int = 0
    rests_until: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_resting(self) -> bool:
        """Return whether it was away a moment ago."""
        return time.monotonic() < self.rests_until

    def open(self) -> Writer:
        """Return its writer.

        Raises:
            ClusterUnavailable: it is not said who we are there, or another thread found it away.
        """
        with self.lock:
            if self.is_resting():
                raise ClusterUnavailable(f"{self.name} was away a moment ago")
            if self.writer is None:
                self.writer = Writer(open_client(self.name), naming(), self.name)
            return self.writer

    def rest(self, error: ClusterUnavailable) -> None:
        """Leave it alone for a while, longer each time."""
        with self.lock:
            if self.is_resting():
                return
            self.writer = None  # credentials may be new the next time
            self.failures += 1
            seconds = min(LONGEST_PAUSE_SECONDS, 0.25 * 2 ** min(self.failures, 10))
            self.rests_until = time.monotonic() + seconds
        ERRORS.labels(kind="cluster").inc()
        log.warning("cluster_unavailable", cluster=self.name, error=error.message, seconds=seconds)


@dataclass(slots=True, kw_only=True)
class Note:
    """What is written down of a state after a batch."""

    known: Known
    is_due: bool = False
    pause_seconds: int = 0
    part_ids: tuple[int, ...] = ()
    error: str = ""
    is_left: bool = False
    is_written: bool = False
    is_gone: bool = False


class Drain:
    """Writes what waits; used by one thread, which holds the lease."""

    def __init__(self) -> None:
        self.ways = {name: Way(name) for name in cluster_names()}
        self._threads = ThreadPoolExecutor(settings.HEADROOM.bridge.threads, "mirror")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()

    def resting(self) -> list[str]:
        """Return the names of clusters that were away a moment ago."""
        return [way.name for way in self.ways.values() if way.is_resting()]

    def run_batch(self) -> int:
        """Write a batch of what waits; return how many objects it had.

        Raises:
            LeaseLost: another process is the bridge now; nothing was noted.
        """
        with one_snapshot():
            batch = _due(settings.HEADROOM.bridge.batch_rows, self.resting())
            rows = _render(batch)
            taken = _taken_names(batch, rows)
        if not batch:
            return 0
        notes = list(self._threads.map(lambda known: self._tried(known, rows, taken), batch))
        with transaction.atomic(durable=True):
            check_leases()
            gone = [note.known for note in notes if note.is_gone]
            kept = [_record(note) for note in notes if not note.is_gone]
            execute(_NOTE, [orjson.dumps(kept).decode()])
            if gone:
                text = orjson.dumps([{"state_id": k.state_id, "wanted": k.wanted} for k in gone])
                execute(_FORGET, [text.decode()])
        for way in self.ways.values():
            if not way.is_resting():
                way.failures = 0
        return len(batch)

    def _tried(
        self,
        known: Known,
        rows: Mapping[tuple[ObjectKind, int], Readable],
        taken: set[tuple[str, ...]],
    ) -> Note:
        row = rows.get((known.kind, known.source_id))
        if isinstance(row, str):
            return _refused(known, row)
        try:
            return self._do(known, row, taken)
        except ObjectRefused as error:  # a policy of the cluster keeps what is to go
            return _refused(known, error.message, part_ids=row.part_ids if row else ())

    def _do(self, known: Known, row: Rendered | None, taken: set[tuple[str, ...]]) -> Note:
        target = None if row is None else cluster_of(row.zone)
        if row is not None and target is None:
            return _refused(known, NO_CLUSTER, part_ids=row.part_ids)
        try:
            if known.cluster and (row is None or (target, row.name) != (known.cluster, known.name)):
                if (known.cluster, known.kind, known.name) not in taken:
                    self._delete(known)
                known = Known(
                    state_id=known.state_id,
                    wanted=known.wanted,
                    kind=known.kind,
                    source_id=known.source_id,
                    is_first=known.is_first,
                )
            if row is None or target is None:
                return Note(known=known, is_gone=True)
            return self._write(self.ways[target], known, row)
        except ClusterUnavailable as error:
            way = self.ways.get(known.cluster or target or "")
            if way is None:  # a cluster that the settings no longer name keeps what it has
                return _refused(replace(known, cluster=""), error.message)
            way.rest(error)
            return Note(
                known=replace(
                    known, cluster=way.name, name=known.name or (row.name if row else "")
                ),
                is_due=True,
                part_ids=row.part_ids if row else (),
                error=error.message,
            )

    def _delete(self, known: Known) -> None:
        way = self.ways.get(known.cluster)
        if way is not None:
            way.open().delete(known)
            WRITES.labels(kind=known.kind.value, what="deleted").inc()

    def _write(self, way: Way, known: Known, row: Rendered) -> Note:
        interval_seconds = settings.HEADROOM.bridge.host_interval_seconds
        if pause_seconds := rest_seconds(known, row, interval_seconds):
            return Note(
                known=known, is_due=True, pause_seconds=pause_seconds, part_ids=row.part_ids
            )
        writer = way.open()
        written = writer.write(known, row, policy=settings.HEADROOM.bridge.hand_edits)
        for event in written.events:
            writer.tell(event)
        known = written.known
        if written.is_drifted:
            DRIFTS.labels(kind=row.kind.value).inc()
            log.warning("mirror_drifted", kind=row.kind.value, name=row.name)
            known = replace(known, drifts=known.drifts + 1)
        if written.error:
            return _refused(known, written.error, part_ids=row.part_ids)
        WRITES.labels(kind=row.kind.value, what="applied").inc(written.requests)
        return Note(
            known=replace(known, failures=0),
            is_due=written.is_outdated,
            is_left=written.is_left,
            part_ids=row.part_ids,
            is_written=bool(written.requests),
        )


def _refused(known: Known, error: str, part_ids: tuple[int, ...] = ()) -> Note:
    ERRORS.labels(kind="object").inc()
    log.error("mirror_refused", kind=known.kind.value, name=known.name, error=error)
    failures = known.failures + 1
    return Note(
        known=replace(known, failures=failures),
        is_due=True,
        pause_seconds=backoff_seconds(failures),
        part_ids=part_ids,
        error=error,
    )


def _due(most: int, resting: Iterable[str]) -> list[Known]:
    """Return what waits and may be tried now, in the order of the changes."""
    rows = (
        MirrorState.objects.filter(is_due=True)
        .extra(where=["due_at <= statement_timestamp()"])
        .exclude(cluster__in=list(resting))
        .order_by("due_at", "id")
        .annotate(age=Now() - F("written_at"))
        .values_list(*_FIELDS.values(), "drifted_at", "age")[:most]
    )
    known = (dict(zip((*_FIELDS, "is_left", "age_seconds"), row, strict=True)) for row in rows)
    return [
        Known(
            **{
                **one,
                "kind": ObjectKind(one["kind"]),
                "is_left": one["is_left"] is not None,
                "age_seconds": one["age_seconds"] and one["age_seconds"].total_seconds(),
            }
        )
        for one in known
    ]


def _render(batch: list[Known]) -> dict[tuple[ObjectKind, int], Readable]:
    rows: dict[tuple[ObjectKind, int], Readable] = {}
    for kind in ObjectKind:
        ids = [known.source_id for known in batch if known.kind is kind]
        if ids:
            found = render_rows(kind, ids, naming())
            rows |= {(kind, source_id): row for source_id, row in found.items()}
    return rows


def _taken_names(
    batch: list[Known], rows: Mapping[tuple[ObjectKind, int], Readable]
) -> set[tuple[str, ...]]:
    """Return which objects other rows bear the names of now: these are not to be deleted."""
    taken: set[tuple[str, ...]] = {
        (cluster_of(row.zone) or "", row.kind, row.name)
        for row in rows.values()
        if isinstance(row, Rendered)
    }
    going = [known for known in batch if known.name]
    others = MirrorState.objects.filter(name__in=[known.name for known in going]).exclude(
        pk__in=[known.state_id for known in going]
    )
    return taken | set(others.values_list("cluster", "kind", "name"))


def _record(note: Note) -> dict[str, Any]:  # Any: what JSON holds
    known = asdict(note.known)
    own = ("is_due", "pause_seconds", "part_ids", "error", "is_left", "is_written")
    return {**known, **{key: getattr(note, key) for key in own}}
