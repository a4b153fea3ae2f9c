"""What slots and VMs ask of another host, from their rows (spec commitments, 9.5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import structlog
from django.conf import settings
from django.db.models import QuerySet

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.groups.reading import load_group_definitions
from capacity.host_table import current_host_table
from capacity.ledger.placing import place_slots
from capacity.ledger.slot_request import (
    NO_DOMAIN,
    DomainHint,
    SlotAsk,
    slot_name,
    slot_name_prefix,
    with_told_names,
)
from capacity.models import ProjectQuota, Reservation
from capacity.nova.pipelines import active_pipelines
from hosts.models import Domain
from scheduling.decision import Decision
from scheduling.evaluation import CompiledPipeline
from scheduling.resources import ResourceVector

log = structlog.get_logger(__name__)

EVERY_GROUP = "*"
NOWHERE: frozenset[str] = frozenset()


class HeldSlot(NamedTuple):
    """A stored slot as far as its request depends on it; sizes in bytes and vCPUs."""

    slot_id: int
    host_id: int | None
    zone: str
    memory_bytes: int
    vcpus: int
    group: str
    flavor_name: str
    project_id: str
    domain_id: str
    slot_index: int
    commitment_uuid: str

    @property
    def size(self) -> ResourceVector:
        """Return its full size."""
        return ResourceVector(memory_bytes=self.memory_bytes, vcpus=self.vcpus)


SLOT_COLUMNS = (
    "pk",
    "target_host_id",
    "zone",
    "memory_bytes",
    "vcpus",
    "flavor_group_name",
    "resource_name",
    "project_id",
    "domain_id",
    "slot_index",
    "commitment__commitment_uuid",
)


def held_slot(row: Reservation) -> HeldSlot:
    """Return a committed slot that was read with its commitment."""
    commitment = row.commitment
    assert commitment is not None  # noqa: S101 - constraint
    return HeldSlot(
        slot_id=row.pk,
        host_id=row.target_host_id,
        zone=row.zone,
        memory_bytes=row.memory_bytes,
        vcpus=row.vcpus,
        group=row.flavor_group_name,
        flavor_name=row.resource_name,
        project_id=row.project_id,
        domain_id=row.domain_id,
        slot_index=row.slot_index or 0,
        commitment_uuid=commitment.commitment_uuid,
    )


def held_slots(slots: QuerySet[Reservation]) -> list[HeldSlot]:
    """Read committed slots, by key."""
    return [HeldSlot(*row) for row in slots.order_by("pk").values_list(*SLOT_COLUMNS)]


class SlotBook:
    """What stored slots ask; flavor groups, pipelines and domains are read once.

    A slot of a group that nobody knows may go nowhere, as admission refuses it; one whose flavor
    the group has no more is placed as its smallest.
    """

    def __init__(self, slots: Iterable[HeldSlot]) -> None:
        """Read what the slots depend on.

        Raises:
            NotReady: flavor groups have not been extracted yet.
        """
        self._groups = load_group_definitions(include_retired=True)
        self._pipelines = slot_pipelines(self._groups)
        self._domains = domain_hints(slot.domain_id for slot in slots)

    def ask_for(
        self,
        slot: HeldSlot,
        *,
        takes: ResourceVector | None = None,
        ignore_hosts: Collection[str] = (),
    ) -> SlotAsk:
        """Return what a slot asks of another host.

        Args:
            takes: What needs room there; its full size when left out.
            ignore_hosts: Hosts that it shall not be on.
        """
        group = self._groups.get(slot.group)
        flavor = None if group is None else _flavor_of(group, slot.flavor_name)
        return SlotAsk(
            slot_id=slot.slot_id,
            slot_index=slot.slot_index,
            slot_name=slot_name(slot_name_prefix(slot.commitment_uuid), slot.slot_index),
            flavor=flavor or FlavorSpec(name=slot.flavor_name, vcpus=0, memory_bytes=0),
            slot=_asked(slot.size if takes is None else takes, flavor),
            zone=slot.zone,
            project_id=slot.project_id,
            ignore_hosts=frozenset(ignore_hosts),
            domain=self._domains.get(slot.domain_id, NO_DOMAIN),
            pipeline=self._pipelines.get(slot.group),
            names_flavor=bool(slot.flavor_name),
            only_hosts=NOWHERE if flavor is None else None,
        )

    def has_flavor(self, slot: HeldSlot) -> bool:
        """Whether the group of a slot has its flavor still."""
        group = self._groups.get(slot.group)
        return group is not None and any(
            flavor.name == slot.flavor_name for flavor in group.flavors
        )

    def pipeline_of(self, group: str) -> CompiledPipeline | None:
        """Return the pipeline that the operator chose for a group; None is the one of slots."""
        return self._pipelines.get(group)


def places_elsewhere(slots: Sequence[Reservation], leaves: Sequence[str]) -> dict[int, Decision]:
    """Choose other hosts for stored slots, each seeing those before.

    Args:
        slots: The slots, read with their commitments, in the order in which they choose.
        leaves: The host that each shall not be on.

    Returns:
        Slot key to its placement; slots that fit nowhere, or whose flavor group is not known, are
        left out.

    Raises:
        NotReady: flavor groups have not been extracted yet.
    """
    held = [held_slot(slot) for slot in slots]
    book = SlotBook(held)
    asks = [
        book.ask_for(slot, ignore_hosts={host} - {""})
        for slot, host in zip(held, leaves, strict=True)
    ]
    decisions = place_slots(current_host_table(), asks)
    return {
        slot.slot_id: decision
        for slot, decision in zip(held, decisions, strict=True)
        if decision is not None and decision.host_id is not None
    }


def _flavor_of(group: FlavorGroupDef, name: str) -> FlavorSpec | None:
    if not group.flavors:
        return None
    return next((flavor for flavor in group.flavors if flavor.name == name), group.smallest)


def _asked(size: ResourceVector, flavor: FlavorSpec | None) -> ResourceVector:
    """Return what a host is asked for: nobody places without a vCPU.

    A part that was cut off a slot may have none of its own; it asks for one, and takes none.
    """
    if size.vcpus or flavor is None or not flavor.vcpus:
        return size
    return replace(size, vcpus=1)


def domain_hints(domain_ids: Iterable[str]) -> dict[str, DomainHint]:
    """Return what is known of domains, by id; one that nobody named counts as unresolved.

    Domains that no list of the cloud has named yet have the name that Limes told with a quota.
    """
    wanted = {domain_id for domain_id in domain_ids if domain_id}
    if not wanted:
        return {}
    names = dict(Domain.objects.filter(openstack_id__in=wanted).values_list("openstack_id", "name"))
    hints = {
        domain_id: DomainHint(name=names.get(domain_id), is_unresolved=domain_id not in names)
        for domain_id in sorted(wanted)
    }
    unlisted = wanted - names.keys()
    if not unlisted:
        return hints
    told = ProjectQuota.objects.filter(domain_id__in=unlisted).exclude(domain_name="")
    return with_told_names(hints, dict(told.order_by("pk").values_list("domain_id", "domain_name")))


def slot_pipelines(groups: Collection[str]) -> Mapping[str, CompiledPipeline]:
    """Return the pipelines that judge slots of flavor groups, where the operator chose one.

    A name that no usable pipeline has is logged, and the pipeline of slots is used.
    """
    chosen = settings.HEADROOM.slots.group_pipelines
    if not chosen:
        return {}
    usable = active_pipelines()
    found: dict[str, CompiledPipeline] = {}
    for group in sorted(groups):
        name = chosen.get(group, chosen.get(EVERY_GROUP, ""))
        if name in usable:
            found[group] = usable[name].pipeline
        elif name:
            log.error("slot_pipeline_unknown", group=group, pipeline=name)
    return found
