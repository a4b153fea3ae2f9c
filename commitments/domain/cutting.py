"""Hosts for the slots of one commitment, cut smaller where they find none (commitments, 6.2).

Slots are as large as their amount and the hosts allow: one that finds no host is cut into the next
smaller flavors, down to the smallest. When that does not place all, hosts are filled in the best
way that there is; so whatever fits in any way is found, and what fits in none is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from capacity.figures.group_packing import GroupPacking
from capacity.figures.packing import SlotSize
from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from capacity.ledger.placing import SlotPlacer
from capacity.ledger.slot_request import SlotAsk, slot_name
from commitments.domain.planner import new_slots
from scheduling.columns import BoolColumn, Int64Column
from scheduling.decision import Decision
from scheduling.resources import ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsWanted:
    """What a commitment looks for hosts for.

    Attributes:
        like: What all its new slots ask alike.
        group: Its flavor group, with at least one flavor.
        stored: Its stored slots without a host.
        whole_ids: Those of them that stay as they are, since there are VMs in them.
        new_bytes: Memory of its new slots in bytes.
        next_index: Number of the first new slot in the commitment.
        prefix: What the names of its slots begin with.
    """

    like: SlotAsk
    group: FlavorGroupDef
    stored: tuple[SlotAsk, ...] = ()
    whole_ids: frozenset[int] = frozenset()
    new_bytes: int = 0
    next_index: int = 0
    prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoughtSlot:
    """A slot and what was decided about it; None when no host can be asked for it."""

    ask: SlotAsk
    decision: Decision | None

    @property
    def is_placed(self) -> bool:
        """Whether it has a host."""
        return self.decision is not None and self.decision.host_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsFound:
    """Slots of a commitment with their hosts.

    Attributes:
        slots: Stored slots that stay, then new ones; those without a host are waiting for one.
        cut_ids: Stored slots that new ones stand for.
    """

    slots: tuple[SoughtSlot, ...]
    cut_ids: tuple[int, ...] = ()

    @property
    def missing(self) -> int:
        """How many have no host."""
        return sum(not slot.is_placed for slot in self.slots)

    @property
    def new(self) -> tuple[SoughtSlot, ...]:
        """Those that are not stored yet."""
        return tuple(slot for slot in self.slots if slot.ask.slot_id is None)


def find_hosts(placer: SlotPlacer, wanted: SlotsWanted) -> SlotsFound:
    """Place the slots of one commitment, cut as small as it takes to place all of them.

    When there is no way to place all, as much as fits is placed largest first, and what is missing
    waits in slots as large as they would be with room enough.

    Args:
        placer: Where slots are placed.
        wanted: What is looked for.

    Source: spec commitments, 6.2; decisions (free room and slot sizes).
    """
    before = placer.count
    found = _LargestFirst(placer, wanted).run()
    if not found.missing:
        return found
    undone = placer.rewind(before)
    filled = _Filling(placer, wanted).run()
    if filled is not None:
        return filled
    placer.rewind(before)
    placer.repeat(undone)
    return found


class _Search:
    """New slots found so far; gone when the search ends."""

    def __init__(self, placer: SlotPlacer, wanted: SlotsWanted) -> None:
        self._placer = placer
        self._wanted = wanted
        self._new: list[SoughtSlot] = []
        self._refusal: Decision | None = None
        self._flavors = tuple(
            flavor
            for flavor in wanted.group.flavors
            if flavor.memory_bytes > 0 and flavor.vcpus > 0
        )

    def _stays(self, ask: SlotAsk) -> bool:
        return ask.slot_id in self._wanted.whole_ids

    def _next_ask(self, flavor: FlavorSpec, memory_bytes: int) -> SlotAsk:
        slot_index = self._wanted.next_index + len(self._new)
        return replace(
            self._wanted.like,
            slot_index=slot_index,
            slot_name=slot_name(self._wanted.prefix, slot_index),
            flavor=flavor,
            slot=ResourceVector(memory_bytes=memory_bytes, vcpus=flavor.vcpus),
        )

    def _place(self, flavor: FlavorSpec, memory_bytes: int, *, only_row: int | None = None) -> bool:
        """Place one more new slot; return whether it has a host."""
        ask = self._next_ask(flavor, memory_bytes)
        found = SoughtSlot(ask=ask, decision=self._placer.place(ask, only_row=only_row))
        if found.is_placed:
            self._new.append(found)
        else:
            self._refusal = found.decision
        return found.is_placed

    def _cut(self, memory_bytes: int, flavors: Sequence[FlavorSpec]) -> int:
        """Place slots for an amount, each the largest that finds a host; return what is left.

        Once a flavor found no host, only smaller ones are tried: there will not be more room.
        """
        for flavor in flavors:
            while memory_bytes >= flavor.memory_bytes:
                if not self._place(flavor, flavor.memory_bytes):
                    break
                memory_bytes -= flavor.memory_bytes
        if not flavors:
            return memory_bytes
        remainder_bytes = memory_bytes % flavors[-1].memory_bytes
        if remainder_bytes and self._place(flavors[-1], remainder_bytes):
            memory_bytes -= remainder_bytes
        return memory_bytes


class _LargestFirst(_Search):
    """Slots as large as possible, cut where one finds no host."""

    def run(self) -> SlotsFound:
        """Return all slots; those that could not be placed come without a host."""
        stored = [
            SoughtSlot(ask=ask, decision=self._placer.place(ask)) for ask in self._wanted.stored
        ]
        kept: list[SoughtSlot] = []
        cut_ids: list[int] = []
        left_bytes = 0
        for slot in stored:
            pieces_before = len(self._new)
            if not slot.is_placed and slot.ask.is_askable and not self._stays(slot.ask):
                rest_bytes = self._cut(slot.ask.slot.memory_bytes, self._smaller_than(slot.ask))
                if len(self._new) > pieces_before and slot.ask.slot_id is not None:
                    cut_ids.append(slot.ask.slot_id)
                    left_bytes += rest_bytes
                    continue
            kept.append(slot)
        left_bytes += self._cut(self._wanted.new_bytes, self._flavors)
        return SlotsFound(
            slots=(*kept, *self._new, *self._waiting(left_bytes)), cut_ids=tuple(cut_ids)
        )

    def _smaller_than(self, ask: SlotAsk) -> tuple[FlavorSpec, ...]:
        return tuple(
            flavor
            for flavor in self._flavors
            if (flavor.memory_bytes, flavor.vcpus) < (ask.slot.memory_bytes, ask.slot.vcpus)
        )

    def _waiting(self, left_bytes: int) -> list[SoughtSlot]:
        """Return slots without a host for what is left; the smallest one tried tells why."""
        flavors = {flavor.name: flavor for flavor in self._wanted.group.flavors}
        first_index = self._wanted.next_index + len(self._new)
        return [
            SoughtSlot(
                ask=replace(
                    self._wanted.like,
                    slot_index=slot.slot_index,
                    slot_name=slot.name,
                    flavor=flavors[slot.resource_name],
                    slot=ResourceVector(memory_bytes=slot.memory_bytes, vcpus=slot.vcpus),
                ),
                decision=self._refusal,
            )
            for slot in new_slots(self._wanted.group, left_bytes, first_index, self._wanted.prefix)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """What hosts have for slots of a commitment; all columns are about the same hosts.

    Attributes:
        rows: Rows of the host table.
        memory_bytes: Free memory.
        vcpus: Free vCPUs.
        admits: Per flavor, the hosts that it may be on if there is room.
        may_hold_rest: The hosts that a slot of the smallest flavor's vCPUs and less memory may be
            on.
    """

    rows: Int64Column
    memory_bytes: Int64Column
    vcpus: Int64Column
    admits: tuple[BoolColumn, ...]
    may_hold_rest: BoolColumn


class _Filling(_Search):
    """Hosts filled in the best way, those that take most first."""

    def run(self) -> SlotsFound | None:
        """Return slots that all have a host; None when there is no way to place the amount.

        Stored slots are made anew, but for those that stay as they are.
        """
        wanted = self._wanted
        stay = [
            SoughtSlot(ask=ask, decision=self._placer.place(ask))
            for ask in wanted.stored
            if self._stays(ask) or not ask.is_askable
        ]
        if not all(slot.is_placed for slot in stay) or not self._place_amount():
            return None
        stay_ids = {slot.ask.slot_id for slot in stay}
        return SlotsFound(
            slots=(*stay, *self._new),
            cut_ids=tuple(
                ask.slot_id
                for ask in wanted.stored
                if ask.slot_id is not None and ask.slot_id not in stay_ids
            ),
        )

    def _place_amount(self) -> bool:
        room = self._room()
        if room is None:
            return False
        amount_bytes = self._wanted.new_bytes + sum(
            ask.slot.memory_bytes for ask in self._wanted.stored if not self._stays(ask)
        )
        if room.memory_bytes.sum() < amount_bytes:
            return False
        sizes = [SlotSize(flavor.memory_bytes, flavor.vcpus) for flavor in self._flavors]
        packing = GroupPacking(sizes, room.admits, int(room.memory_bytes.max(initial=0)))
        most_bytes = packing.most(room.memory_bytes, room.vcpus).memory_bytes
        short_bytes = amount_bytes - int(most_bytes.sum())
        if short_bytes <= 0:
            return self._fill(room, packing, most_bytes, amount_bytes)
        return self._fill_with_rest(room, packing, most_bytes, short_bytes)

    def _room(self) -> _Room | None:
        """Return the hosts that any slot of the commitment may be on; None when there are none."""
        if not self._flavors:
            return None
        smallest = self._flavors[-1]
        asked = [self._next_ask(flavor, flavor.memory_bytes) for flavor in self._flavors]
        looks = [self._placer.look(ask) for ask in (*asked, self._next_ask(smallest, 1))]
        seen = next((look for look in looks if look is not None), None)
        if seen is None:
            return None
        passing = [
            look.survivors() if look is not None else np.zeros(len(seen.scores), dtype=np.bool_)
            for look in looks
        ]
        rows = np.flatnonzero(np.logical_or.reduce(passing))
        memory_bytes, vcpus = seen.free.memory_bytes[rows], seen.free.vcpus[rows]
        return _Room(
            rows=rows,
            memory_bytes=memory_bytes,
            vcpus=vcpus,
            admits=tuple(
                mask[rows] | (memory_bytes < flavor.memory_bytes) | (vcpus < flavor.vcpus)
                for flavor, mask in zip(self._flavors, passing, strict=False)
            ),
            may_hold_rest=passing[-1][rows],
        )

    def _fill(
        self, room: _Room, packing: GroupPacking, most_bytes: Int64Column, amount_bytes: int
    ) -> bool:
        for host in np.argsort(-most_bytes, kind="stable").tolist():
            host_bytes = int(most_bytes[host])
            if host_bytes > amount_bytes:
                return self._fill_in_part(room, host, packing, host_bytes, amount_bytes)
            if not self._place_all(room, host, packing.slots(host, host_bytes)):
                return False
            amount_bytes -= host_bytes
            if not amount_bytes:
                return True
        return False

    def _fill_in_part(
        self, room: _Room, host: int, packing: GroupPacking, host_bytes: int, amount_bytes: int
    ) -> bool:
        """Place the rest of an amount wherever it fits, else on a host with room for more of it.

        There, the last slot is a part of its flavor.
        """
        placed, found = self._placer.count, len(self._new)
        if not self._cut(amount_bytes, self._flavors):
            return True
        self._placer.rewind(placed)
        del self._new[found:]
        for size in packing.slots(host, host_bytes):
            taken_bytes = min(size.memory_bytes, amount_bytes)
            if not self._place_all(room, host, (size,), memory_bytes=taken_bytes):
                return False
            amount_bytes -= taken_bytes
            if not amount_bytes:
                break
        return True

    def _fill_with_rest(
        self, room: _Room, packing: GroupPacking, most_bytes: Int64Column, short_bytes: int
    ) -> bool:
        """Fill every host, and one so that a slot smaller than every flavor has room beside."""
        smallest = self._flavors[-1]
        beside_bytes = packing.most(room.memory_bytes - 1, room.vcpus - smallest.vcpus).memory_bytes
        rest_bytes = np.minimum(smallest.memory_bytes - 1, room.memory_bytes - beside_bytes)
        gain_bytes = np.where(room.may_hold_rest, beside_bytes + rest_bytes - most_bytes, 0)
        if not len(gain_bytes) or gain_bytes.max() < short_bytes:
            return False
        chosen = int(gain_bytes.argmax())
        placed_bytes = most_bytes.copy()
        placed_bytes[chosen] = beside_bytes[chosen]
        rest = short_bytes + int(most_bytes[chosen]) - int(beside_bytes[chosen])
        for host in np.argsort(-placed_bytes, kind="stable").tolist():
            if not self._place_all(room, host, packing.slots(host, int(placed_bytes[host]))):
                return False
        return self._place(smallest, rest, only_row=int(room.rows[chosen]))

    def _place_all(
        self, room: _Room, host: int, sizes: Sequence[SlotSize], *, memory_bytes: int | None = None
    ) -> bool:
        for size in sizes:
            flavor = next(
                flavor
                for flavor, mask in zip(self._flavors, room.admits, strict=True)
                if mask[host] and (flavor.memory_bytes, flavor.vcpus) == size
            )
            taken_bytes = size.memory_bytes if memory_bytes is None else memory_bytes
            if not self._place(flavor, taken_bytes, only_row=int(room.rows[host])):
                return False
        return True
