"""All objects of a cluster against what was written: what others changed is found and healed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from bridge.domain.kinds import Kind
from bridge.domain.writing import Known
from bridge.kube.objects import Writer
from bridge.metrics import DRIFTS, ERRORS, WRITES
from bridge.models import MirrorState
from journal.leases import check_leases

log = structlog.get_logger(__name__)

FEWEST_DELETED: Final = 5
MOST_TOLD: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a cluster has of our objects.

    Attributes:
        began: When it was begun to be listed, by the database's time.
        versions: Name and version of each object, by kind.
    """

    began: datetime
    versions: Mapping[Kind, Mapping[str, str]]


def list_objects(writer: Writer, began: datetime) -> Listed:
    """Return what a cluster has; begun while nothing waits to be written there.

    Raises:
        ClusterUnavailable: the cluster does not answer.
    """
    return Listed(began=began, versions={kind: writer.versions(kind) for kind in Kind})


def compare(writer: Writer, cluster: str, listed: Listed) -> int:
    """Mark due what a cluster lacks or others changed, and delete what no row is behind.

    What was written since the list began is not in it for sure, and is left for the next one.
    Returns how many objects differed.

    Raises:
        ClusterUnavailable: the cluster does not answer.
        LeaseLost: another process is the bridge now.
    """
    return sum(_compare_kind(writer, cluster, kind, listed) for kind in Kind)


def _compare_kind(writer: Writer, cluster: str, kind: Kind, listed: Listed) -> int:
    found = listed.versions[kind]
    is_restoring = settings.HEADROOM.bridge.hand_edits == "restore"
    differing: dict[int, str] = {}
    known = set()
    states = MirrorState.objects.filter(cluster=cluster, kind=kind)
    for pk, name, version, is_due, left_at, written_at in states.values_list(
        "pk", "name", "resource_version", "is_due", "drifted_at", "written_at"
    ).iterator():
        known.add(name)
        is_newer = written_at is not None and written_at >= listed.began
        is_same = found.get(name) == version
        if not (is_due or is_newer or is_same) and (is_restoring or left_at is None):
            differing[pk] = name
    if differing:
        _mark(list(differing), kind, is_restoring=is_restoring)
    if not is_restoring:  # else they are told of when they are written
        for name in list(differing.values())[:MOST_TOLD]:
            writer.tell_of_hand_edit(kind, name)
    orphans = sorted(found.keys() - known)
    most = max(FEWEST_DELETED, settings.HEADROOM.bridge.max_drop_ratio * len(found))
    if len(orphans) > most:
        ERRORS.labels(kind="orphans").inc()
        log.error(
            "mirror_orphans_kept", cluster=cluster, kind=kind.value, count=len(orphans), most=most
        )
        return len(differing)
    for name in orphans:
        writer.delete(Known(state_id=0, wanted=0, kind=kind, source_id=0, name=name))
        WRITES.labels(kind=kind.value, what="deleted").inc()
    return len(differing) + len(orphans)


def _mark(differing: list[int], kind: Kind, *, is_restoring: bool) -> None:
    """Let objects be written anew, or note that they are left as they are."""
    with transaction.atomic(durable=True):
        check_leases()
        changed = {
            "spec_digest": "",
            "status_digest": "",
            "is_due": True,
            "wanted": F("wanted") + 1,
            "due_at": Now(),
        }
        if not is_restoring:
            changed = {"drifted_at": Now(), "resource_version": "", "drifts": F("drifts") + 1}
            DRIFTS.labels(kind=kind.value).inc(len(differing))
        MirrorState.objects.filter(pk__in=differing).update(**changed)
    log.warning("mirror_differs", kind=kind.value, count=len(differing))
