"""What the slots of a commitment ask hosts, and which hosts answer yes (spec commitments, 9.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.ledger.placing import SlotPlacer
from capacity.ledger.slot_request import NO_DOMAIN, SlotAsk, slot_name
from commitments.domain.planner import SlotView
from commitments.domain.state import CommitmentState
from scheduling.resources import ZERO, ResourceVector

if TYPE_CHECKING:
    from commitments.domain.admission import AdmissionSnapshot


def like_ask(
    snapshot: AdmissionSnapshot, desired: CommitmentState, group: FlavorGroupDef
) -> SlotAsk:
    """Return what all slots of a commitment ask alike.

    Args:
        snapshot: For domains and pipelines.
        group: Its flavor group, with at least one flavor.
    """
    return SlotAsk(
        slot_id=None,
        slot_index=0,
        slot_name="",
        flavor=group.smallest,
        slot=ZERO,
        zone=desired.zone,
        project_id=desired.project_id,
        domain=snapshot.domains.get(desired.domain_id, NO_DOMAIN),
        pipeline=snapshot.pipelines.get(group.name),
    )


def stored_ask(like: SlotAsk, slot: SlotView, group: FlavorGroupDef, prefix: str) -> SlotAsk:
    """Return what a stored slot asks.

    Args:
        like: What all slots of its commitment ask.
        prefix: What the names of the commitment's slots begin with.
    """
    flavors = {flavor.name: flavor for flavor in group.flavors}
    return replace(
        like,
        slot_id=slot.slot_id,
        slot_index=slot.slot_index,
        slot_name=slot_name(prefix, slot.slot_index),
        flavor=flavors.get(slot.resource_name, group.smallest),
        slot=ResourceVector(memory_bytes=slot.memory_bytes, vcpus=slot.vcpus),
        names_flavor=bool(slot.resource_name),
    )


@dataclass(slots=True)
class OpenHosts:
    """Which hosts take slots of a project at all, whatever room they have; asked when needed."""

    snapshot: AdmissionSnapshot
    placer: SlotPlacer | None = None
    found: dict[tuple[str, str, str, str], frozenset[str]] = field(default_factory=dict)

    def admit(self, slot: SlotView, desired: CommitmentState) -> bool:
        """Whether a slot could be on its host if it were a commitment's."""
        return slot.target_host in self._hosts(slot, desired)

    def _hosts(self, slot: SlotView, desired: CommitmentState) -> frozenset[str]:
        groups: Mapping[str, FlavorGroupDef] = self.snapshot.groups
        group = groups.get(desired.flavor_group_name)
        if group is None or not group.flavors:
            return frozenset()
        like = like_ask(self.snapshot, desired, group)
        ask = stored_ask(like, slot, group, desired.slot_prefix)
        key = (ask.project_id, group.name, ask.zone, ask.flavor.name)
        if key not in self.found:
            if self.placer is None:
                self.placer = SlotPlacer(self.snapshot.hosts)
            self.found[key] = self.placer.passing([ask])
        return self.found[key]
