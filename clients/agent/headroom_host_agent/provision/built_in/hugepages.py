"""Huge pages that are set aside: a pool is what it was plus all reservations (spec hosts, D.11)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from headroom_host_agent.provision.built_in.base import BuiltIn, others_of, read_number, write
from headroom_host_agent.provision.data import (
    Field,
    amount,
    fields_of,
    lenient_fields,
    number,
    one_of,
)
from headroom_host_agent.provision.provisioners import HostContext, ProvisionError
from headroom_host_agent.provision.stored import Artifact
from headroom_host_agent.provision.units import Units
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.resources.tree import read_or_none

KIND = "hugepages"
_KIB = {"2MiB": 2048, "1GiB": 1024**2}
SCHEMA: Mapping[str, Field] = {
    "page_size": Field(one_of(*_KIB), "2MiB or 1GiB", is_needed=True),
    "count": Field(number(1, 2**32), "a whole number from 1", is_needed=True),
    "numa_node": Field(number(0, 1023), "the number of a NUMA node"),
}


class Hugepages(BuiltIn):
    """Writes absolute numbers, so that a repetition changes nothing."""

    order = 1
    data_schema = SCHEMA

    def units(self, reservation: Reservation) -> Units:
        """Return the memory of the pages."""
        data = lenient_fields(reservation)
        size = _KIB.get(str(data.get("page_size")), 0) * 1024
        return Units(mru=amount(data, "count") * size)

    def check(self, context: HostContext, reservation: Reservation) -> None:
        """Look whether the host has such a pool.

        Raises:
            ProvisionError: It has not, or pages of this size are set aside both per node and not.
        """
        data = fields_of(reservation, SCHEMA)
        read_number(self._pool(data) / "nr_hugepages")
        for other in others_of(context, KIND):
            known = lenient_fields(other)
            is_same_size = known.get("page_size") == data["page_size"]
            if is_same_size and ("numa_node" in known) != ("numa_node" in data):
                raise ProvisionError(
                    "mixed_pools", f"{other.id} has such pages by another rule about NUMA nodes"
                )

    def provision(self, context: HostContext, reservation: Reservation) -> Mapping[str, object]:
        """Set pages aside.

        Raises:
            ProvisionError: The kernel gave fewer; the number is as before.
        """
        data = fields_of(reservation, SCHEMA)
        file = self._pool(data) / "nr_hugepages"
        before = read_number(file)
        wanted = self._baseline(context, file, before) + self._held(context, data)
        wanted += amount(data, "count")
        plan = self.plan({file: str(wanted)})
        if self.place.enforce:
            write(file, str(wanted))
            given = read_number(file)
            if given < wanted:
                write(file, str(before))
                raise ProvisionError("too_few_pages", f"got {given} pages, wanted {wanted}")
        return plan

    def verify(self, context: HostContext, reservation: Reservation) -> bool:
        """Return whether the pool is as large as all reservations together."""
        data = lenient_fields(reservation)
        file = self._pool(data) / "nr_hugepages"
        if not self.place.enforce:
            return True
        here = read_number(file)
        least = self._baseline(context, file, here) + self._held(context, data)
        return here >= least + amount(data, "count")

    def decommission(self, context: HostContext, reservation: Reservation) -> None:
        """Give pages back.

        Raises:
            ProvisionError: They are in use.
        """
        data = lenient_fields(reservation)
        file = self._pool(data) / "nr_hugepages"
        if not self.place.enforce or not file.exists():
            return
        here, free = read_number(file), read_number(file.with_name("free_hugepages"))
        known = context.kept(self._name_of(file))
        if known is None:
            return  # nothing was ever set aside since the boot
        wanted = int(known) + self._held(context, data)
        if wanted >= here:
            return
        if here - free > wanted:
            raise ProvisionError("in_use", f"{here - free} pages are in use, {wanted} would stay")
        write(file, str(wanted))

    def in_use(self, artifact: Artifact) -> bool:
        """Return true: pages belong to no artefact."""
        return True

    def artifacts(self, context: HostContext) -> Iterable[tuple[str, str]]:
        """Return nothing: a pool is a number."""
        return ()

    def remove(self, artifact: Artifact) -> None:
        """Do nothing."""

    def _pool(self, data: Mapping[str, object]) -> Path:
        size = _KIB.get(str(data.get("page_size")), 0)
        node = data.get("numa_node")
        base = "sys/kernel/mm" if node is None else f"sys/devices/system/node/node{node}"
        return self.place.sysroot / base / f"hugepages/hugepages-{size}kB"

    def _held(self, context: HostContext, data: Mapping[str, object]) -> int:
        """Return the pages of other reservations in the same pool."""
        pool = self._pool(data)
        known = [lenient_fields(other) for other in others_of(context, KIND)]
        return sum(amount(one, "count") for one in known if self._pool(one) == pool)

    def _baseline(self, context: HostContext, file: Path, here: int) -> int:
        """Return what the pool had before us, since the boot; kept when it is first asked for."""
        name = self._name_of(file)
        known = context.kept(name)
        if known is None:
            known = str(here)
            if self.place.enforce:
                context.keep(name, known)
        return int(known)

    def _name_of(self, file: Path) -> str:
        boot = read_or_none(self.place.sysroot / "proc/sys/kernel/random/boot_id") or ""
        return f"baseline {file.relative_to(self.place.sysroot)} {boot}"
