"""Hints that something changed: where the next pass looks, never what it believes.

Whoever hears of a change (Nova's notifications) notes a hint; the look at changes asks the API for
exactly these VMs, and passes over other kinds come at once. A hint that is lost, doubled, late or
forged costs a question at the most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from django.db import transaction

from hosts.clients.listing import COMPUTE, CloudReader
from hosts.domain.notifications import Hint
from hosts.feed.lists import PassKind, in_parallel, lists_of
from hosts.models import FeedHint, Instance
from journal.clock import database_now
from journal.nudges import hint_worker

CHANGES_TASK: Final = "hosts.feed_changes"
MOST_HINTS: Final = 1000
"""More need not be kept: changed VMs are listed anyway."""
MOST_LOOKED_AT: Final = 100

Json = Any  # bodies keep the APIs' own shapes


def note_hints(hints: Collection[Hint]) -> None:
    """Keep hints for the next pass and ask a worker for it; many of the same are one."""
    now = database_now()
    with transaction.atomic():
        if FeedHint.objects.count() < MOST_HINTS:
            FeedHint.objects.bulk_create(
                (
                    FeedHint(kind=kind, object_id=object_id, seen_at=now)
                    for kind, object_id in sorted(set(hints))
                ),
                update_conflicts=True,
                unique_fields=["kind", "object_id"],
                update_fields=["seen_at"],
            )
    hint_worker(CHANGES_TASK)


def hinted_kinds() -> list[PassKind]:
    """Return the kinds, other than VMs, that hints ask for."""
    hints = FeedHint.objects.exclude(kind=PassKind.SERVERS).order_by("kind")
    return [PassKind(kind) for kind in hints.values_list("kind", flat=True).distinct()]


def forget_hints(kind: PassKind, until: datetime) -> None:
    """Forget the hints that a pass has looked at.

    Args:
        until: When the pass began; what came later is looked at by the next.
    """
    FeedHint.objects.filter(kind=kind, seen_at__lte=until).delete()


def hinted_servers(cloud: CloudReader) -> Iterator[Json]:
    """Yield the VMs that hints name; one that we have and Nova does not is yielded as deleted.

    Nova hides VMs of other projects from whoever is no administrator: a 404 counts where it shows
    another VM of that project.
    """
    (servers,) = lists_of(PassKind.SERVERS)
    hints = FeedHint.objects.filter(kind=PassKind.SERVERS).order_by("seen_at")
    vm_uuids = list(hints.values_list("object_id", flat=True)[:MOST_LOOKED_AT])
    known: Iterable[tuple[str, str]] = Instance.objects.filter(
        openstack_id__in=vm_uuids
    ).values_list("openstack_id", "project_id")
    ours = dict(known)
    found = list(in_parallel(lambda vm: (vm, cloud.get(COMPUTE, servers.path_of(vm))), vm_uuids))
    shown = {body["server"].get("tenant_id") for _, body in found if body is not None}
    absent = [vm_uuid for vm_uuid, body in found if body is None and vm_uuid in ours]
    for _, body in found:
        if body is not None:
            yield body["server"]
    for project_id in sorted({ours[vm_uuid] for vm_uuid in absent} - shown):
        others = Instance.objects.filter(project_id=project_id).exclude(openstack_id__in=absent)
        witness = others.order_by("pk").values_list("openstack_id", flat=True).first()
        if witness and cloud.get(COMPUTE, servers.path_of(witness)) is not None:
            shown.add(project_id)
    for vm_uuid in absent:
        if ours[vm_uuid] in shown:
            yield {"id": vm_uuid, "status": "DELETED"}
