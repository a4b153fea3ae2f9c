"""What a cluster tells of its objects against what was written: what others changed is marked.

Lists and events name versions. One that is not the version of the last write, nor of an earlier
one, is somebody else's: the object is marked and looked at when it is written next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from bridge.domain.kinds import ObjectKind
from bridge.domain.writing import Known, is_newer
from bridge.kube.client import ObjectRefused
from bridge.kube.objects import Writer
from bridge.kube.observing import Heard, Listed
from bridge.metrics import ERRORS, WRITES
from bridge.models import MirrorState
from journal.leases import check_leases

log = structlog.get_logger(__name__)

FEWEST_DELETED: Final = 5
#: Rows that are compared, and orphans that are deleted, in one go: changes go in between.
SLICE: Final = 1000
ORPHANS: Final = 20


def compare(writer: Writer, cluster: str, listed: Listed) -> Iterator[int]:
    """Mark what a cluster lacks or others changed, and delete what no row is behind.

    What was written after the list is not in it, and is left for the next one. Works in slices;
    yields after each how many objects differed.

    Raises:
        ClusterUnavailable: the cluster does not answer.
        LeaseLost: another process is the bridge now.
    """
    known: set[str] = set()
    states = MirrorState.objects.filter(cluster=cluster, kind=listed.kind).order_by("pk")
    last = 0
    while rows := list(
        states.filter(pk__gt=last).values_list("pk", "name", "resource_version", "is_due")[:SLICE]
    ):
        last = rows[-1][0]
        known.update(name for _, name, _, _ in rows)
        yield _mark(
            listed.kind,
            [
                pk
                for pk, name, version, is_due in rows
                if not is_due
                and listed.versions.get(name, "") != version
                and not is_newer(version, listed.version)
            ],
        )
    yield _mark_left(cluster, listed.kind)
    orphans = sorted(listed.versions.keys() - known)
    most = max(FEWEST_DELETED, settings.HEADROOM.bridge.max_drop_ratio * len(listed.versions))
    if len(orphans) > most:
        ERRORS.labels(kind="orphans").inc()
        log.error(
            "mirror_orphans_kept",
            cluster=cluster,
            kind=listed.kind.value,
            count=len(orphans),
            most=most,
        )
        return
    # One that a bridge wrote and died before it noted that is written again first.
    unnamed = MirrorState.objects.filter(kind=listed.kind, is_due=True, name="", failures=0)
    while orphans and unnamed.exists():
        yield 1
    for start in range(0, len(orphans), ORPHANS):
        yield _delete(writer, listed.kind, orphans[start : start + ORPHANS])


def _delete(writer: Writer, kind: ObjectKind, names: list[str]) -> int:
    taken = set(
        MirrorState.objects.filter(kind=kind, name__in=names).values_list("name", flat=True)
    )
    for name in set(names) - taken:
        try:
            writer.delete(Known(state_id=0, wanted=0, kind=kind, source_id=0, name=name))
        except ObjectRefused as error:  # tried again with the next list
            ERRORS.labels(kind="object").inc()
            log.error("mirror_refused", kind=kind.value, name=name, error=error.message)  # noqa: TRY400 - one line
        else:
            WRITES.labels(kind=kind.value, what="deleted").inc()
    return len(names)


def take_events(cluster: str, events: Iterable[Heard]) -> int:
    """Mark objects of which events tell that others changed or deleted them; return how many.

    After all that was written is noted: our own writes come back as events too.

    Raises:
        LeaseLost: another process is the bridge now.
    """
    latest = {(event.kind, event.name): event for event in events}
    marked = 0
    for kind in {kind for kind, _ in latest}:
        names = [name for of, name in latest if of is kind]
        states = MirrorState.objects.filter(cluster=cluster, kind=kind, name__in=names)
        marked += _mark(
            kind,
            [
                pk
                for pk, name, version in states.filter(is_suspect=False).values_list(
                    "pk", "name", "resource_version"
                )
                if _is_by_others(latest[kind, name], version)
            ],
        )
    return marked


def _is_by_others(event: Heard, version: str) -> bool:
    if event.is_gone:
        return bool(version) and not is_newer(version, event.version)
    return event.version != version and not is_newer(version, event.version)


def _mark(kind: ObjectKind, keys: list[int]) -> int:
    if keys:
        _look_at(Q(pk__in=keys))
        log.warning("mirror_differs", kind=kind.value, count=len(keys))
    return len(keys)


def _mark_left(cluster: str, kind: ObjectKind) -> int:
    """Mark what was left when the settings said something else."""
    policy = settings.HEADROOM.bridge.hand_edits
    left = Q(cluster=cluster, kind=kind, is_suspect=False, drifted_at__isnull=False)
    if policy == "report":
        return 0
    return _look_at(left & Q(adopted__isnull=True) if policy == "adopt" else left)


def _look_at(which: Q) -> int:
    with transaction.atomic(durable=True):
        check_leases()
        return MirrorState.objects.filter(which).update(
            is_suspect=True, is_due=True, wanted=F("wanted") + 1, due_at=Now()
        )
