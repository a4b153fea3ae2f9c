"""Failover reservations and their users as plain values (spec failover, 1, 3.1, 7.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUser:
    """A VM in a failover reservation.

    Attributes:
        host: Host the VM ran on when it joined.
        joined_at: When it joined, any number that grows with time; decides whom a conflict costs.
    """

    vm_uuid: str
    host: str
    joined_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSlot:
    """Room held on one host for the VMs listed in it, for the case that their host dies.

    Attributes:
        name: Unique name; empty for a hypothetical reservation.
        host: Host that holds it.
        users: Its users in the order in which they joined; a VM occurs once.
        memory_bytes: Its size; None counts as too small for any VM that asks for memory.
        vcpus: Likewise.
    """

    name: str
    host: str
    users: tuple[SlotUser, ...] = ()
    memory_bytes: int | None = None
    vcpus: int | None = None
    zone: str = ""

    def host_of(self, vm_uuid: str) -> str | None:
        """Return the host a user ran on when it joined; None if the VM is not a user."""
        return next((user.host for user in self.users if user.vm_uuid == vm_uuid), None)

    def joined(self, user: SlotUser) -> FailoverSlot:
        """Return the reservation with one more user."""
        return replace(self, users=(*self.users, user))

    def left(self, vm_uuids: Iterable[str]) -> FailoverSlot:
        """Return the reservation without some users."""
        gone = frozenset(vm_uuids)
        return replace(self, users=tuple(u for u in self.users if u.vm_uuid not in gone))
