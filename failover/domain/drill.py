"""Failure drill: which VMs survive the loss of hosts, and where (spec failover, 17.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import groupby

from failover.domain.drill_matching import prioritised_matching
from failover.domain.drill_state import DrillState
from scheduling.resources import ZERO, ResourceVector


class DrillPolicy(StrEnum):
    """How slots are given out."""

    PRIVATE = "private"
    MATCHING = "matching"


class UnprotectedReason(StrEnum):
    """Why a VM would get no slot."""

    NO_SLOTS = "no_slots"
    ALL_SLOT_HOSTS_FAILED = "all_slot_hosts_failed"
    OUTNUMBERED = "outnumbered"
    NOT_FIT = "not_fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A VM that survives.

    Attributes:
        from_host: Host it ran on.
        slot: Slot it takes.
        to_host: Host of the slot.
        is_private: Whether no other affected VM could use the slot.
    """

    vm: str
    from_host: str
    slot: str
    to_host: str
    is_private: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unprotected:
    """A VM that slots are owed to and that would get none.

    Attributes:
        required: How many slots it must have.
        slots: How many it has.
        reason: Why none serves it.
    """

    vm: str
    required: int
    slots: int
    reason: UnprotectedReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A slot that several affected VMs without a private one have to share.

    Attributes:
        vms: The VMs, in order of uuid.
    """

    slot: str
    vms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAfter:
    """A host that takes VMs in.

    Attributes:
        used: What VMs take on it after the evacuation.
        effective: What may be promised on it.
    """

    host: str
    used: ResourceVector
    effective: ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """What happens when a set of hosts fails.

    Attributes:
        failed_hosts: Names of the hosts, sorted.
        affected_vms: VMs on them.
        assignments: Who survives and where, in order of uuid.
        unprotected: Who does not although slots are owed to it, in order of uuid.
        conflicts: Slots that are wanted by several, in order of name.
        hosts_after: Hosts that take VMs in, in order of name.
    """

    failed_hosts: tuple[str, ...]
    affected_vms: int
    assignments: tuple[Assignment, ...]
    unprotected: tuple[Unprotected, ...]
    conflicts: tuple[Conflict, ...]
    hosts_after: tuple[HostAfter, ...]

    @property
    def reasons(self) -> Mapping[str, int]:
        """How many VMs are unprotected, by reason."""
        return Counter(row.reason.value for row in self.unprotected)


class DrillVerificationError(RuntimeError):
    """A drill gave an answer that cannot be carried out: a defect of the drill."""


@dataclass(slots=True, kw_only=True)
class _Claims:
    """What the affected VMs could use; only while one drill runs."""

    usable: dict[str, list[str]] = field(default_factory=dict)
    has_live: set[str] = field(default_factory=set)
    claimants: dict[str, list[str]] = field(default_factory=dict)


def simulate(
    state: DrillState,
    failed: Collection[str],
    *,
    policy: DrillPolicy = DrillPolicy.MATCHING,
    settled: Collection[str] = (),
    taken: Collection[str] = (),
) -> DrillResult:
    """Return what happens to the VMs of hosts that fail at the same time.

    A VM takes a slot that no other affected VM could use, on the host with most free memory; who
    has none is matched to the contested ones, the largest VMs first. A slot counts where its host
    lives and is not over-subscribed, and where it is large enough.

    Args:
        state: Hosts, VMs and slots.
        failed: Names of the hosts.
        policy: ``private`` gives out private slots alone.
        settled: VMs that are looked after already, such as those whose evacuation has begun.
        taken: Slots that are not to be given out.

    Raises:
        DrillVerificationError: the answer cannot be carried out, which is a defect.

    Source: spec failover, 17.2 (simulation, steps 1 to 3).
    """
    gone, spent = frozenset(failed), frozenset(taken)
    affected = sorted(
        uuid for host in gone for uuid in state.vms_on.get(host, ()) if uuid not in settled
    )
    claims = _claims(state, affected, gone, spent)
    private = _private_slots(state, claims)
    contested = {
        uuid: slots for uuid, slots in claims.usable.items() if slots and uuid not in private
    }
    matched: dict[str, str] = {}
    if policy is DrillPolicy.MATCHING and contested:
        matched = prioritised_matching(_by_size(state, contested), contested)
    given = {**private, **matched}
    result = DrillResult(
        failed_hosts=tuple(sorted(gone)),
        affected_vms=len(affected),
        assignments=tuple(
            Assignment(
                vm=uuid,
                from_host=state.vms[uuid].host,
                slot=given[uuid],
                to_host=state.slots[given[uuid]].host,
                is_private=uuid in private,
            )
            for uuid in affected
            if uuid in given
        ),
        unprotected=tuple(_unprotected(state, affected, given, claims, gone)),
        conflicts=_conflicts(contested),
        hosts_after=_hosts_after(state, given),
    )
    verify_drill(state, result)
    return result


def verify_drill(state: DrillState, result: DrillResult) -> None:
    """Check that a drill's answer can be carried out.

    Raises:
        DrillVerificationError: a slot is used twice or is not the VM's, a target is dead, a VM does
            not fit, or a host takes more than it has.

    Source: spec failover, 17.2, step 3 of the simulation.
    """
    failed = frozenset(result.failed_hosts)
    spent: set[str] = set()
    for row in result.assignments:
        slot, vm = state.slots[row.slot], state.vms[row.vm]
        problems = (
            (row.slot in spent, "is used twice"),
            (row.vm not in slot.users, "does not list the VM"),
            (slot.host in failed or not state.hosts[slot.host].is_alive, "is on a dead host"),
            (not vm.size.fits_into(slot.size), "is too small"),
        )
        for is_wrong, words in problems:
            if is_wrong:
                raise DrillVerificationError(f"slot {row.slot} of VM {row.vm} {words}")
        spent.add(row.slot)
    for after in result.hosts_after:
        if not after.used.fits_into(after.effective):
            raise DrillVerificationError(f"host {after.host} would take more than it has")


def _claims(
    state: DrillState, affected: Iterable[str], gone: frozenset[str], spent: frozenset[str]
) -> _Claims:
    claims = _Claims()
    for uuid in affected:
        size = state.vms[uuid].size
        usable = claims.usable[uuid] = []
        for name in state.slots_of.get(uuid, ()):
            slot = state.slots[name]
            host = state.hosts.get(slot.host)
            if slot.host in gone or host is None or not host.is_alive:
                continue
            claims.has_live.add(uuid)
            is_free = slot.is_usable and name not in spent
            if is_free and host.keeps_promises and size.fits_into(slot.size):
                usable.append(name)
                claims.claimants.setdefault(name, []).append(uuid)
    return claims


def _private_slots(state: DrillState, claims: _Claims) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for uuid, usable in claims.usable.items():
        own = [name for name in usable if len(claims.claimants[name]) == 1]
        if own:
            chosen[uuid] = min(own, key=lambda name: (-_free_memory_bytes(state, name), name))
    return chosen


def _free_memory_bytes(state: DrillState, slot: str) -> int:
    return state.hosts[state.slots[slot].host].free.memory_bytes


def _by_size(state: DrillState, uuids: Iterable[str]) -> Sequence[Sequence[str]]:
    """Return VMs in classes of equal memory, the largest first, each in order of uuid."""
    ordered = sorted(uuids, key=lambda uuid: (-state.vms[uuid].size.memory_bytes, uuid))
    return [
        list(members)
        for _, members in groupby(ordered, key=lambda uuid: state.vms[uuid].size.memory_bytes)
    ]


def _unprotected(
    state: DrillState,
    affected: Iterable[str],
    given: Mapping[str, str],
    claims: _Claims,
    gone: frozenset[str],
) -> Iterable[Unprotected]:
    without_zone = state.hosts_of_lost_zones(gone)
    for uuid in affected:
        vm = state.vms[uuid]
        slots = len(state.slots_of.get(uuid, ()))
        if uuid in given or not (vm.required_count or slots):
            continue
        if claims.usable[uuid]:
            reason = UnprotectedReason.OUTNUMBERED
        elif uuid in claims.has_live:
            reason = UnprotectedReason.NOT_FIT
        elif not slots or vm.host in without_zone:
            reason = UnprotectedReason.NO_SLOTS
        else:
            reason = UnprotectedReason.ALL_SLOT_HOSTS_FAILED
        yield Unprotected(vm=uuid, required=vm.required_count, slots=slots, reason=reason)


def _conflicts(contested: Mapping[str, Sequence[str]]) -> tuple[Conflict, ...]:
    wanted_by: dict[str, list[str]] = {}
    for uuid in sorted(contested):
        for name in contested[uuid]:
            wanted_by.setdefault(name, []).append(uuid)
    return tuple(
        Conflict(slot=name, vms=tuple(wanted_by[name]))
        for name in sorted(wanted_by)
        if len(wanted_by[name]) > 1
    )


def _hosts_after(state: DrillState, given: Mapping[str, str]) -> tuple[HostAfter, ...]:
    arriving: dict[str, ResourceVector] = {}
    for uuid, name in given.items():
        host = state.slots[name].host
        arriving[host] = arriving.get(host, ZERO) + state.vms[uuid].size
    return tuple(
        HostAfter(
            host=name,
            used=state.hosts[name].allocated + arriving[name],
            effective=state.hosts[name].effective,
        )
        for name in sorted(arriving)
    )
