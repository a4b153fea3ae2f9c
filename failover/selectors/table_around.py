"""What a zone's reservations mean for one VM, from the process's host table (spec failover, 17.5).

The table has every failover reservation with its users and the VMs of every host, brought up to
date by change, so that a question costs what is near and no statement. It knows users by where the
VM list says they run. Where that is not where they were recorded, a join may be refused; then
:class:`failover.selectors.vicinity.DatabaseSlotsAround` knows better.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from failover.domain.one_vm import Offer
from failover.domain.shelf import Size
from failover.domain.zone_columns import ZoneSnapshot
from journal.statements import fetch_rows
from scheduling.rows import ReservationRow
from scheduling.table import HostTable

CONFIRM = "SELECT id, name, memory_bytes, vcpus, users FROM failover_offers(%(keys)s::bigint[])"


class TableSlotsAround:
    """Implements ``failover.domain.one_vm.SlotsAround`` on a host table."""

    def __init__(self, table: HostTable, snapshot: ZoneSnapshot) -> None:
        self._table = table
        self._zone = snapshot.zone
        self._names = snapshot.hosts.names
        self._row = snapshot.host_row
        self._opened: dict[tuple[Size, int], list[ReservationRow]] = {}

    def closed_to(self, host: int) -> frozenset[int]:
        """Return the reservations that no VM of a host may join."""
        name = self._names[host]
        of_vm = self._table.reservations.failover_of_vm
        near = {slot.reservation_id: slot for slot in self._on(name)}
        for uuid in self._vms_on([name]):
            near |= {slot.reservation_id: slot for slot in of_vm.get(uuid, ())}
        users = {uuid for slot in near.values() for uuid in slot.vm_uuids}
        beyond = {slot.reservation_id for uuid in users for slot in of_vm.get(uuid, ())}
        return frozenset(near) | beyond

    def touching(self, hosts: Collection[int]) -> frozenset[int]:
        """Return the reservations on some hosts, or with a user there."""
        names = {self._names[host] for host in hosts}
        found = {slot.reservation_id for name in names for slot in self._on(name)}
        slots_of = self._table.reservations.failover_of_vm.get
        for uuid in self._vms_on(names):
            for slot in slots_of(uuid, ()):
                found.add(slot.reservation_id)
        return frozenset(found)

    def sizes(self, memory_bytes: int, vcpus: int, *, below: int) -> Sequence[Size]:
        """Return the sizes of reservations that are at least as large, the tightest first."""
        del below  # those of a size are looked at when it is its turn
        zone = self._zone
        return sorted(
            (memory, cores)
            for of_zone, memory, cores in self._table.reservations.failover_of_size
            if of_zone == zone and memory >= memory_bytes and cores >= vcpus
        )

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
            for slot in self._open(size, below)
            if slot.reservation_id not in without
        ]

    def user_hosts(self, key: int) -> frozenset[int]:
        """Return the hosts of the users of a reservation."""
        slot = self._table.reservations.by_id[key]
        return frozenset(row for uuid in slot.vm_uuids for row in self._rows_of(uuid))

    def confirmed(self, offers: Sequence[Offer]) -> Sequence[Offer] | None:
        """Return offers with their names; None unless all are usable and as the table has them."""
        rows = fetch_rows(CONFIRM, {"keys": [offer.key for offer in offers]})
        now = {key: (name, tuple(figures)) for key, name, *figures in rows}
        found = []
        for offer in offers:
            name, figures = now.get(offer.key, ("", ()))
            if figures != (offer.memory_bytes, offer.vcpus, offer.users):
                return None
            found.append(replace(offer, name=name))
        return found

    def _open(self, size: Size, below: int) -> list[ReservationRow]:
        """Return the ready reservations of a size with fewer users, by key; most are full."""
        found = self._opened.get((size, below))
        if found is None:
            of_size = self._table.reservations.failover_of_size.get((self._zone, *size), ())
            found = [slot for slot in of_size if len(slot.vm_uuids) < below and slot.is_ready]
            found = [slot for slot in found if slot.target_host in self._row]
            self._opened[size, below] = found
        return found

    def _on(self, host: str) -> Iterator[ReservationRow]:
        for slot in self._table.reservations.failover_on.get(host, ()):
            if slot.zone == self._zone:
                yield slot

    def _vms_on(self, hosts: Iterable[str]) -> Iterator[str]:
        rows = (self._table.row_of.get(host) for host in hosts)
        return chain.from_iterable(self._table.instances[row] for row in rows if row is not None)

    def _rows_of(self, vm_uuid: str) -> list[int]:
        names = self._table.names
        places = (names[row] for row in self._table.instance_index.rows_of(vm_uuid))
        return [self._row[name] for name in places if name in self._row]
