"""What a cut-over would move, and what stands in its way (docs/gateway.md)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from core.conf import headroom
from core.prepared import fetch
from journal.errors import HeadroomError
from placement.cutover.peer import READERS, Peer
from placement.domain.microversion import MAX_MINOR
from placement.domain.transfer import Contents, plan_copy
from placement.gateway.modes import Group, Mode
from placement.models import Phase

#: Requests for each provider, and for each consumer, through the API.
PROVIDER_REQUESTS: Final = 4
CONSUMER_REQUESTS: Final = 1
SHOWN_PROBLEMS: Final = 20
OURS: Final = """
SELECT count(*), min(p.name) FROM placement_provider p
 WHERE p.origin = 'api' OR (p.origin = 'host' AND EXISTS (
        SELECT FROM placement_allocation a WHERE a.provider_id = p.id))
"""


class InTheWayError(HeadroomError):
    """Something has to be settled before copying begins."""

    code = "placement_cutover_in_the_way"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be moved.

    Attributes:
        trees: Providers without a parent.
        spanning: Consumers with something in more than one tree; they move whole.
        in_the_way: What has to be settled first, a line each.
        notes: What is good to know.
        copy_seconds: Estimate through the API.
    """

    providers: int
    trees: int
    consumers: int
    allocations: int
    spanning: int
    in_the_way: tuple[str, ...]
    notes: tuple[str, ...]
    copy_seconds: float


def make_plan(peer: Peer, contents: Contents, phase: Phase) -> Plan:
    """Return what a cut-over of all that the other side holds would be."""
    began_at = time.monotonic()
    peer.rows()
    once = time.monotonic() - began_at
    requests = PROVIDER_REQUESTS * len(contents.providers) + CONSUMER_REQUESTS * len(
        contents.consumers
    )
    started = time.monotonic()
    for uuid in list(contents.consumers)[:READERS]:
        peer.consumer(uuid)
    each = (time.monotonic() - started) / READERS if contents.consumers else once
    problems = plan_copy(contents, Contents()).problems
    return Plan(
        providers=len(contents.providers),
        trees=sum(not record.parent for record in contents.providers.values()),
        consumers=len(contents.consumers),
        allocations=sum(
            len(held)
            for record in contents.consumers.values()
            for held in record.allocations.values()
        ),
        spanning=_spanning(contents),
        in_the_way=(*settings_in_the_way(phase), *problems[:SHOWN_PROBLEMS]),
        notes=_notes(peer, contents),
        copy_seconds=requests * each,
    )


def settings_in_the_way(phase: Phase) -> tuple[str, ...]:
    """Return what of our own side stands in the way, a line each."""
    settings = headroom()
    elsewhere = [
        group
        for group, mode in settings.gateway.mode_of_group().items()
        if mode is not Mode.PASSTHROUGH and group is not Group.ROOT
    ]
    found = []
    if elsewhere:
        named = ", ".join(elsewhere)
        found.append(f"HEADROOM_GATEWAY__MODES: only passthrough moves, and these are not: {named}")
    if settings.gateway.allow_mode_override:
        found.append("HEADROOM_GATEWAY__ALLOW_MODE_OVERRIDE lets requests go past the cut-over")
    if settings.placement.host_providers:
        found.append(
            "HEADROOM_PLACEMENT__HOST_PROVIDERS makes providers of hosts: off until the end"
        )
    if phase in {Phase.OFF, Phase.COPYING}:
        count, name = fetch(OURS)[0]
        if count:
            found.append(
                f"{count} providers are our own, such as {name}: copies would stand beside them"
            )
    found.extend(_catalog_in_the_way(settings.gateway))
    return tuple(found)


def refuse_what_is_in_the_way(phase: Phase) -> None:
    """Refuse to begin while something of our own side stands in the way.

    Raises:
        InTheWayError: with all of it.
    """
    found = settings_in_the_way(phase)
    if found:
        raise InTheWayError("; ".join(found))


def _catalog_in_the_way(gateway: Any) -> list[str]:  # Any: settings of a floor above
    """Say so if Nova would still ask the other Placement itself."""
    if not gateway.cloud:
        return []
    import openstack  # noqa: PLC0415 - takes a second

    endpoint = openstack.connect(cloud=gateway.cloud).session.get_endpoint(service_type="placement")
    if endpoint is None:
        return ["the service catalogue has no placement"]
    if endpoint.rstrip("/") == gateway.upstream_url.rstrip("/"):
        return [f"the service catalogue still points at the other Placement: {endpoint}"]
    return []


def _spanning(contents: Contents) -> int:
    def root(uuid: str) -> str:
        seen = set()
        while uuid in contents.providers and contents.providers[uuid].parent and uuid not in seen:
            seen.add(uuid)
            uuid = contents.providers[uuid].parent
        return uuid

    return sum(
        len({root(uuid) for uuid in record.allocations}) > 1
        for record in contents.consumers.values()
    )


def _notes(peer: Peer, contents: Contents) -> tuple[str, ...]:
    notes = []
    newest = peer.newest()[1]
    if newest < MAX_MINOR:
        notes.append(
            f"the other Placement knows versions up to 1.{newest}, we up to 1.{MAX_MINOR}: a "
            "client that uses a newer one after the switch stands in the way of rolling back"
        )
    empty = sum(not record.allocations for record in contents.consumers.values())
    if empty:
        notes.append(f"{empty} consumers hold nothing and are left behind")
    if not headroom().gateway.cloud:
        notes.append("without HEADROOM_GATEWAY__CLOUD nobody knows where the catalogue points")
    return tuple(notes)
