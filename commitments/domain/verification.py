"""Which VMs are in a slot: seen, expected, moved on or gone (spec commitments, 9.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from scheduling.resources import ResourceVector


class VMFate(StrEnum):
    """What becomes of a VM in a slot."""

    KEPT = "kept"
    CONFIRMED = "confirmed"
    FOLLOWED = "followed"
    MISSING = "missing"
    NEVER_ARRIVED = "never_arrived"
    MOVED_AWAY = "moved_away"
    GONE = "gone"
    OTHER_GROUP = "other_group"
    HELD_BACK = "held_back"
    MISGROUPED = "misgrouped"

    @property
    def leaves(self) -> bool:
        """Whether the VM leaves the slot."""
        return self in LEAVING


LEAVING = frozenset({VMFate.NEVER_ARRIVED, VMFate.MOVED_AWAY, VMFate.GONE, VMFate.OTHER_GROUP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Where the VM list has a VM.

    Attributes:
        host_id: Key of its host; None while it is listed without one.
        is_moving: Whether Nova works on it, so that it may be on no host for a moment.
        resources: What it takes now.
        group: Flavor group of its flavor, empty for none; None when the flavor is not known.
    """

    host_id: int | None
    resources: ResourceVector
    is_moving: bool = False
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedVM:
    """A VM in a slot as it is stored.

    Attributes:
        is_confirmed: Whether it was seen there at the last look.
        since: When it was placed there.
        resources: What it took at the last look, in all slots of the host together.
        missing_since: When a VM that had been seen was first listed nowhere.
        is_in_flight: Whether an in-flight reservation still waits for it.
        claimed_on: Keys of the hosts of which it holds room in Placement.
        is_denied: Whether it is known to hold nothing of the slot's host, whatever the list says.
        is_claim_listed: Whether the VM list is so much newer than its last claim that it must show
            what became of it; else the claim is newer and exact.
        is_deleted: Whether Nova said that it is deleted; not being listed does not say so.
    """

    vm_uuid: str
    is_confirmed: bool
    since: datetime
    resources: ResourceVector
    missing_since: datetime | None = None
    is_in_flight: bool = False
    claimed_on: frozenset[int] = frozenset()
    is_denied: bool = False
    is_claim_listed: bool = False
    is_deleted: bool = False

    @property
    def was_seen(self) -> bool:
        """Whether it was ever seen in the slot."""
        return self.is_confirmed or self.missing_since is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotVMs:
    """A placed slot with its VMs.

    Attributes:
        slot_id: Key of its row.
        host_id: Key of the host it is on.
        vms: The VMs in it.
        group: Flavor group whose VMs it is for; empty while nobody knows what belongs to it.
    """

    slot_id: int
    host_id: int
    vms: tuple[ListedVM, ...]
    group: str = ""

    def is_for(self, sighting: Sighting) -> bool:
        """Whether a VM is of the slot's flavor group, as far as flavors are known."""
        return not self.group or sighting.group is None or sighting.group == self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class VMVerdict:
    """What becomes of one VM of a slot.

    Attributes:
        vm: The VM as it was stored.
        fate: What becomes of it.
        host_id: Where it was seen; None when nowhere.
        resources: What it takes, as seen or else as stored.
    """

    vm: ListedVM
    fate: VMFate
    host_id: int | None
    resources: ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotVerdict:
    """What becomes of a slot and its VMs.

    Attributes:
        slot_id: Key of its row.
        vms: One verdict per VM, in the order of the slot's VMs.
        follows_to: Key of the host the slot follows its only VM to; None when it stays.
        is_in_grace: Whether a VM is still given time to appear.
    """

    slot_id: int
    vms: tuple[VMVerdict, ...]
    follows_to: int | None = None
    is_in_grace: bool = False

    @property
    def newly_confirmed(self) -> tuple[str, ...]:
        """VMs that are seen there and were not at the last look; other slots lose them (9.4)."""
        return tuple(
            verdict.vm.vm_uuid
            for verdict in self.vms
            if verdict.fate is VMFate.CONFIRMED and not verdict.vm.is_confirmed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long what is not seen is waited for.

    Attributes:
        grace: For a VM that was placed and never seen.
        settle: For a VM that was seen and is listed nowhere; zero drops it at once.
        may_drop: Whether what the VM list lacks is believed to be gone. A list that shrank too much
            is not: then nothing leaves a slot for not being listed.
    """

    grace: timedelta
    settle: timedelta
    may_drop: bool = True


def verify_slot(
    slot: SlotVMs,
    sightings: Mapping[str, Sighting],
    *,
    now: datetime,
    patience: Patience,
    can_follow: Callable[[int], bool],
) -> SlotVerdict:
    """Compare the VMs of a slot with where the VM list has them.

    A VM on the slot's host is confirmed, in whatever state it is and however long it has been
    there. One that was never seen has the grace period to appear. One that was seen and is on
    another host leaves, or takes the slot along if it is alone in it and there is room. One that is
    listed nowhere leaves once that has lasted. One whose flavor is of another group now uses room
    that was not promised to it: it leaves once Nova is done with it, and where it is awaited it has
    not arrived before its flavor changes. One that holds its room in Placement stays, whatever an
    older list says, and for not being listed: it leaves with its allocation. A list that is so much
    newer than the claim that it must know of it is believed all the same: where it shows the VM at
    rest on another host, of which it holds nothing, or deleted, or of another group. One that is
    awaited and holds nothing of the host of which all claims are known is not there, though an old
    list has it: its room would be given away before it comes.

    Args:
        slot: The slot, placed.
        sightings: Where VMs are listed; missing ones are listed nowhere.
        patience: How long to wait for what is not seen.
        can_follow: Whether a host of the slot's zone has room for it, and no other slot awaits the
            VM there. Nothing else is asked: the VM is there already.

    Source: spec commitments, 9.3, 10.3 with its product rules; groups: 2.2 (matches_group), 14.3.
    """
    verdicts: list[VMVerdict] = []
    follows_to: int | None = None
    is_in_grace = False
    for vm in slot.vms:
        sighting = sightings.get(vm.vm_uuid)
        fate = _fate(vm, sighting, slot, now, patience)
        host_id = sighting.host_id if sighting is not None else None
        is_alone = fate is VMFate.MOVED_AWAY and len(slot.vms) == 1
        is_foreign = sighting is not None and not slot.is_for(sighting)
        if is_alone and not is_foreign and host_id is not None and can_follow(host_id):
            fate, follows_to = VMFate.FOLLOWED, host_id
        is_in_grace |= fate is VMFate.KEPT and not vm.was_seen
        verdicts.append(
            VMVerdict(
                vm=vm,
                fate=fate,
                host_id=host_id,
                resources=sighting.resources if sighting is not None else vm.resources,
            )
        )
    return SlotVerdict(
        slot_id=slot.slot_id,
        vms=tuple(verdicts),
        follows_to=follows_to,
        is_in_grace=is_in_grace,
    )


def _fate(
    vm: ListedVM, sighting: Sighting | None, slot: SlotVMs, now: datetime, patience: Patience
) -> VMFate:
    host_id = sighting.host_id if sighting is not None else None
    if slot.host_id in vm.claimed_on and (vm.is_confirmed or host_id != slot.host_id):
        return _fate_of_claimed(vm, sighting, slot)
    is_believed = vm.was_seen or not vm.is_denied
    if sighting is not None and host_id == slot.host_id and is_believed:
        if not slot.is_for(sighting):
            return _fate_of_foreign(vm, sighting, now, patience)
        is_known = vm.is_confirmed and vm.resources == sighting.resources
        return VMFate.KEPT if is_known else VMFate.CONFIRMED
    if not vm.was_seen:
        return _fate_of_unseen(vm, now, patience)
    if host_id is not None:
        return VMFate.MOVED_AWAY
    is_moving = sighting is not None and sighting.is_moving
    return VMFate.KEPT if is_moving else _fate_of_absent(vm, now, patience)


def _fate_of_claimed(vm: ListedVM, sighting: Sighting | None, slot: SlotVMs) -> VMFate:
    if vm.is_claim_listed and vm.is_deleted:
        return VMFate.GONE
    if not vm.is_claim_listed or sighting is None or sighting.is_moving:
        return VMFate.KEPT
    if sighting.host_id == slot.host_id:
        return VMFate.KEPT if slot.is_for(sighting) else VMFate.MISGROUPED
    is_known_there = sighting.host_id is None or sighting.host_id in vm.claimed_on
    return VMFate.KEPT if is_known_there else VMFate.MOVED_AWAY


def _fate_of_foreign(vm: ListedVM, sighting: Sighting, now: datetime, patience: Patience) -> VMFate:
    if not vm.was_seen:
        return _fate_of_unseen(vm, now, patience)
    return VMFate.KEPT if sighting.is_moving else VMFate.OTHER_GROUP


def _fate_of_unseen(vm: ListedVM, now: datetime, patience: Patience) -> VMFate:
    if vm.is_in_flight or now - vm.since < patience.grace:
        return VMFate.KEPT
    return VMFate.NEVER_ARRIVED if patience.may_drop else VMFate.HELD_BACK


def _fate_of_absent(vm: ListedVM, now: datetime, patience: Patience) -> VMFate:
    if vm.missing_since is None and (patience.settle or not patience.may_drop):
        return VMFate.MISSING
    if not patience.may_drop:
        return VMFate.HELD_BACK
    has_settled = vm.missing_since is None or now - vm.missing_since >= patience.settle
    return VMFate.GONE if has_settled else VMFate.KEPT
