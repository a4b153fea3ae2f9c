"""What a zone's reservations mean for one VM, from the process's host table (spec failover, 17.5).

The table has every failover reservation with its users and the VMs of every host, brought up to
date by change, so that a question costs what is near and no statement. It knows users by where the
VM list says they run. Where that is not where they were recorded, a join may be refused; then
:class:`failover.selectors.vicinity.DatabaseSlotsAround` knows better.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

from failover.domain.one_vm import Offer
from failover.domain.shelf import Size
from failover.domain.zone_columns import ZoneSnapshot
from failover.selectors.zone import fetch_rows
from scheduling.rows import ReservationRow
from scheduling.table import HostTable

CONFIRM = """
SELECT known.name, count(vm.id)
  FROM capacity_reservation AS held
  JOIN failover_failoverreservation AS known ON known.reservation_id = held.id
  LEFT JOIN capacity_reservationallocation AS vm ON vm.reservation_id = held.id
 WHERE held.id = %(key)s AND held.is_ready AND known.state = 'active'
   AND held.memory_bytes = %(memory_bytes)s AND held.vcpus = %(vcpus)s
 GROUP BY known.name
"""


class TableSlotsAround:
    """Implements ``failover.domain.one_vm.SlotsAround`` on a host table."""

    def __init__(self, table: HostTable, snapshot: ZoneSnapshot) -> None:
        self._table = table
        self._zone = snapshot.zone
        self._names = snapshot.hosts.names
        self._row = snapshot.host_row
        self._opened: tuple[int, Mapping[Size, list[ReservationRow]]] = (-1, {})

    @cached_property
    def _slots(self) -> list[ReservationRow]:
        """Reservations of the zone, by key."""
        zone = self._zone
        return [slot for slot in self._table.reservations.failover if slot.zone == zone]

    def closed_to(self, host: int) -> frozenset[int]:
        """Return the reservations that no VM of a host may join."""
        name = self._names[host]
        near = {slot.reservation_id: slot for slot in self._slots if slot.target_host == name}
        near |= {slot.reservation_id: slot for slot in self._of_vms_on(name)}
        users = {uuid for slot in near.values() for uuid in slot.vm_uuids}
        of_vm = self._table.reservations.failover_of_vm
        beyond = {slot.reservation_id for uuid in users for slot in of_vm.get(uuid, ())}
        return frozenset(near) | beyond

    def touching(self, hosts: Collection[int]) -> frozenset[int]:
        """Return the reservations on some hosts, or with a user there."""
        names = {self._names[host] for host in hosts}
        found = {slot.reservation_id for slot in self._slots if slot.target_host in names}
        found.update(slot.reservation_id for name in names for slot in self._of_vms_on(name))
        return frozenset(found)

    def sizes(self, memory_bytes: int, vcpus: int, *, below: int) -> Sequence[Size]:
        """Return the sizes of reservations that are at least as large, the tightest first."""
        found = self._open(below)
        return sorted(size for size in found if size[0] >= memory_bytes and size[1] >= vcpus)

    def offers(self, size: Size, *, without: Collection[int], below: int) -> Sequence[Offer]:
        """Return reservations of a size with fewer users than ``below``, by key.

        Whether they are usable is for :meth:`confirmed` to say.
        """
        return [
            Offer(
                key=slot.reservation_id,
                name="",
                host=self._row[slot.target_host],
                memory_bytes=size[0],
                vcpus=size[1],
                users=len(slot.vm_uuids),
            )
            for slot in self._open(below).get(size, ())
            if slot.reservation_id not in without
        ]

    def user_hosts(self, key: int) -> frozenset[int]:
        """Return the hosts of the users of a reservation."""
        slot = self._table.reservations.by_id[key]
        return frozenset(row for uuid in slot.vm_uuids for row in self._rows_of(uuid))

    def confirmed(self, offer: Offer) -> Offer | None:
        """Return an offer with its name if it is usable and as the table has it, else None."""
        asked = {"key": offer.key, "memory_bytes": offer.memory_bytes, "vcpus": offer.vcpus}
        for name, users in fetch_rows(CONFIRM, asked):
            if users == offer.users:
                return Offer(
                    key=offer.key,
                    name=name,
                    host=offer.host,
                    memory_bytes=offer.memory_bytes,
                    vcpus=offer.vcpus,
                    users=users,
                )
        return None

    def _open(self, below: int) -> Mapping[Size, list[ReservationRow]]:
        """Return size -> ready reservations with fewer users, by key; most of a zone are full."""
        if self._opened[0] != below:
            found: dict[Size, list[ReservationRow]] = {}
            for slot in self._slots:
                is_open = len(slot.vm_uuids) < below and slot.is_ready
                if is_open and slot.target_host in self._row:
                    size = slot.full.memory_bytes, slot.full.vcpus
                    found.setdefault(size, []).append(slot)
            self._opened = below, found
        return self._opened[1]

    def _of_vms_on(self, host: str) -> Iterator[ReservationRow]:
        of_vm = self._table.reservations.failover_of_vm
        row = self._table.row_of.get(host)
        if row is not None:
            for uuid in self._table.instances[row]:
                yield from of_vm.get(uuid, ())

    def _rows_of(self, vm_uuid: str) -> list[int]:
        names = self._table.names
        places = (names[row] for row in self._table.instance_index.rows_of(vm_uuid))
        return [self._row[name] for name in places if name in self._row]
