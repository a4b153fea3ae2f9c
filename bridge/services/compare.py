"""All objects of a cluster against what was written: what others changed is found and healed."""

from __future__ import annotations

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


def compare(writer: Writer, cluster: str) -> int:
    """Mark due what a cluster lacks or others changed, and delete what no row is behind.

    For a moment in which nothing waits to be written there. Returns how many objects differed.

    Raises:
        ClusterUnavailable: the cluster does not answer.
        LeaseLost: another process is the bridge now.
    """
    return sum(_compare_kind(writer, cluster, kind) for kind in Kind)


def _compare_kind(writer: Writer, cluster: str, kind: Kind) -> int:
    found = writer.versions(kind)
    is_restoring = settings.HEADROOM.bridge.hand_edits == "restore"
    differing: dict[int, str] = {}
    known = set()
    states = MirrorState.objects.filter(cluster=cluster, kind=kind)
    for pk, name, version, is_due, left_at in states.values_list(
        "pk", "name", "resource_version", "is_due", "drifted_at"
    ).iterator():
        known.add(name)
        if not is_due and found.get(name) != version and (is_restoring or left_at is None):
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
