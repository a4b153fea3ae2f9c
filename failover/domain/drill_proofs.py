"""Failures that the columns of a zone prove harmless (spec failover, 17.2).

A slot is private to a VM in a failure if it could take the VM and no other VM that goes down. Who
has a private slot survives, whatever the others get. A failure in which every VM that is owed a
slot has a private one needs no simulation, and its VMs need not become objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from failover.domain.zone_columns import BoolColumn, Int64Column, ZoneSnapshot, grouped

#: Slots that a VM needs to be covered against the loss of two hosts.
PAIR_COUNT: Final = 2
#: So many pairs of VMs that share a slot are looked at together.
AT_ONCE: Final = 1 << 20


def groups_at_risk(zone: ZoneSnapshot, group: Int64Column, count: int) -> BoolColumn:
    """Return bool[G], the groups of hosts whose loss may cost a VM a slot that is owed to it.

    Args:
        group: int64[H], the group that each host fails with; -1 where it does not fail.
        count: G, how many groups there are.
    """
    vms = zone.vms
    home = np.append(group, -1)[vms.host]
    is_safe = np.zeros(len(vms), dtype=np.bool_)
    is_safe[zone.members.vm[_private(zone, group, home)]] = True
    is_at_risk = np.zeros(count, dtype=np.bool_)
    is_at_risk[home[_owed(zone, 1) & ~is_safe & (home >= 0)]] = True
    return is_at_risk


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairRisks:
    """Pairs of hosts that could cost a VM its slot which needs two or more.

    Attributes:
        cases: How many pairs interact; hosts whose VMs share nothing count by themselves.
        lower: int64[P], of each pair that nothing proves harmless the lower row of a host.
        upper: int64[P], the other row; the same where the host fails alone.
    """

    cases: int
    lower: Int64Column
    upper: Int64Column


def pairs_at_risk(zone: ZoneSnapshot) -> PairRisks:
    """Return the pairs of hosts that may cost a VM its slot which needs two or more.

    For a VM that keeps the rules only pairs of its own host and a host of its list L(v) interact,
    for another one all pairs of its host. Who keeps the rules and has two usable slots survives
    every pair. Of the others, who has a private slot when its own host fails alone is lost only
    with a host that spoils all of these: it holds the slot, or a VM that may use it.

    Source: spec failover, 7.3, 17.1, 17.2 (scheduled report).
    """
    vms, hosts = zone.vms, len(zone.hosts)
    roles = _Roles.of(zone)
    wanted = _owed(zone, PAIR_COUNT) & (vms.host >= 0)
    usable = np.bincount(roles.vm[zone.can_take[roles.rows]], minlength=len(vms))
    breaks = np.zeros(len(vms), dtype=np.bool_)
    keys: list[Int64Column] = []
    weak_keys: list[Int64Column] = []
    for vm, other in roles.of_vms(wanted):
        home = roles.home[vm]
        role = np.sort(vm * hosts + other)
        breaks[role[1:][role[1:] == role[:-1]] // hosts] = True
        breaks[vm[home == other]] = True
        keeps = ~breaks[vm]
        key = _key(home, other, hosts)
        keys.append(distinct(key[keeps]))
        weak_keys.append(distinct(key[keeps & (usable[vm] < PAIR_COUNT)]))
    weak = wanted & (breaks | (usable < PAIR_COUNT))
    everywhere = np.zeros(hosts, dtype=np.bool_)  # hosts of which all pairs interact
    everywhere[vms.host[wanted & breaks]] = True
    alone = np.zeros(hosts, dtype=np.bool_)
    shares = np.zeros(len(vms), dtype=np.bool_)
    shares[roles.vm] = True
    alone[vms.host[weak & ~shares if hosts > 1 else weak]] = True
    lost, spoiling = _spoiling(zone, roles, weak)

    interacting = distinct(*keys)
    touches = everywhere[interacting // hosts] | everywhere[interacting % hosts]
    many = int(np.count_nonzero(everywhere))
    cases = np.count_nonzero(~touches) + many * (hosts - 1) - many * (many - 1) // 2

    weakest = distinct(*weak_keys)
    is_lost = lost[weakest // hosts] | lost[weakest % hosts] | np.isin(weakest, spoiling)
    is_near = everywhere[spoiling // hosts] | everywhere[spoiling % hosts]
    single = np.flatnonzero(alone)
    at_risk = distinct(
        weakest[is_lost],
        spoiling[is_near],
        _crossed(everywhere, lost, hosts),
        _crossed(everywhere & lost, np.ones(hosts, dtype=np.bool_), hosts),
        _key(single, single, hosts),
    )
    return PairRisks(cases=int(cases) + len(single), lower=at_risk // hosts, upper=at_risk % hosts)


def _owed(zone: ZoneSnapshot, least: int) -> BoolColumn:
    """Return bool[V], VMs that are owed at least so many slots."""
    return zone.vms.is_owed & (zone.vms.required >= least)


def _private(zone: ZoneSnapshot, group: Int64Column, home: Int64Column) -> Int64Column:
    """Return rows of members whose slot is the VM's alone when the group of its host fails.

    Args:
        group: int64[H], the group of each host.
        home: int64[V], that of the VM's host; -1 where it does not fail.
    """
    slot, vm = zone.members.slot, zone.members.vm
    place = np.append(group, -1)[zone.slots.host][slot]
    rows = np.flatnonzero(zone.can_take & (home[vm] >= 0) & (home[vm] != place))
    key = slot[rows] * np.int64(len(zone.hosts)) + home[vm[rows]]
    _, first, times = np.unique(key, return_index=True, return_counts=True)
    private: Int64Column = rows[first[times == 1]]
    return private


def _spoiling(
    zone: ZoneSnapshot, roles: _Roles, weak: BoolColumn
) -> tuple[BoolColumn, Int64Column]:
    """Return what could cost some VMs their slot.

    Returns:
        (bool[H], hosts that lose such a VM with any other, as it has no private slot; keys of the
        pairs of a VM's host and one that spoils all its private slots).
    """
    home, hosts = roles.home, len(zone.hosts)
    own = np.zeros(len(zone.members), dtype=np.bool_)
    own[_private(zone, np.arange(hosts), home)] = True
    own &= weak[zone.members.vm]
    count = np.bincount(zone.members.vm[own], minlength=len(home))
    lost = np.zeros(hosts, dtype=np.bool_)
    lost[home[weak & (count == 0)]] = True
    found = []
    for vm, other in roles.of_members(own[roles.rows], zone.can_take[roles.rows]):
        role, times = np.unique(vm * hosts + other, return_counts=True)
        role = role[times >= count[role // hosts]]
        found.append(_key(home[role // hosts], role % hosts, hosts))
    return lost, distinct(*found)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Roles:
    """Who shares slots with whom; M members whose slot and VM are on hosts of the zone.

    Attributes:
        home: int64[V], host of each VM.
        rows: int64[M], rows of ``members``.
        slot: int64[M].
        vm: int64[M].
        place: int64[M], host of the slot.
        starts: int64[R + 1], into ``ordered``: the members of each slot.
        ordered: int64[M], members by slot.
    """

    home: Int64Column
    rows: Int64Column
    slot: Int64Column
    vm: Int64Column
    place: Int64Column
    starts: Int64Column
    ordered: Int64Column

    @classmethod
    def of(cls, zone: ZoneSnapshot) -> _Roles:
        members, home = zone.members, zone.vms.host.astype(np.int64)
        place = zone.slots.host.astype(np.int64)[members.slot]
        rows = np.flatnonzero((place >= 0) & (home[members.vm] >= 0))
        slot = members.slot[rows].astype(np.int64)
        starts, ordered = grouped(slot, len(zone.slots))
        return cls(
            home=home,
            rows=rows,
            slot=slot,
            vm=members.vm[rows].astype(np.int64),
            place=place[rows],
            starts=starts,
            ordered=ordered,
        )

    def of_vms(self, chosen: BoolColumn) -> Iterator[tuple[Int64Column, Int64Column]]:
        """Yield (VMs, hosts), the rest of the lists L(v) of some VMs: each VM's is in one part."""
        everyone = np.ones(len(self.rows), dtype=np.bool_)
        return self.of_members(chosen[self.vm], everyone)

    def of_members(
        self, chosen: BoolColumn, counted: BoolColumn
    ) -> Iterator[tuple[Int64Column, Int64Column]]:
        """Yield (VMs, hosts): of each chosen member its VM, the slot's host and its sharers' hosts.

        Args:
            chosen: bool[M].
            counted: bool[M], which of the others count as sharers.
        """
        asked = np.flatnonzero(chosen)
        asked = asked[np.argsort(self.vm[asked], kind="stable")]
        if not len(asked):
            return
        users = np.diff(self.starts)[self.slot[asked]]
        first = np.flatnonzero(np.diff(self.vm[asked], prepend=-1))
        part = np.cumsum(users)[first] // AT_ONCE
        for mine in np.split(asked, first[1:][np.diff(part) > 0]):
            users = np.diff(self.starts)[self.slot[mine]]
            left = np.repeat(mine, users)
            ends = np.cumsum(users)
            step = np.arange(ends[-1]) - np.repeat(ends - users, users)
            right = self.ordered[np.repeat(self.starts[self.slot[mine]], users) + step]
            is_other = counted[right] & (self.vm[right] != self.vm[left])
            yield (
                np.append(self.vm[mine], self.vm[left[is_other]]),
                np.append(self.place[mine], self.home[self.vm[right[is_other]]]),
            )


def _key(one: Int64Column, other: Int64Column, hosts: int) -> Int64Column:
    """Return a number for each pair of hosts, whichever comes first."""
    return np.minimum(one, other) * hosts + np.maximum(one, other)


def _crossed(ones: BoolColumn, others: BoolColumn, hosts: int) -> Int64Column:
    """Return the pairs of each of some hosts with each of others."""
    one, other = (found.ravel() for found in np.ix_(np.flatnonzero(ones), np.flatnonzero(others)))
    left, right = np.repeat(one, len(other)), np.tile(other, len(one))
    is_pair = left != right
    return _key(left[is_pair], right[is_pair], hosts)


def distinct(*keys: Int64Column) -> Int64Column:
    """Return int64[K], numbers of columns once each, ascending; none is negative."""
    ordered = np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *keys]))
    return ordered[np.diff(ordered, prepend=-1) > 0]
