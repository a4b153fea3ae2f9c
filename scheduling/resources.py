"""Amounts of the resources that a host gives and a reservation takes (spec commitments, 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ResourceVector:
    """An amount of memory and CPU.

    Attributes:
        memory_bytes: Memory in bytes; may be negative in differences.
        vcpus: Whole vCPUs; may be negative in differences.
    """

    memory_bytes: int = 0
    vcpus: int = 0

    def __add__(self, other: ResourceVector) -> ResourceVector:
        return ResourceVector(
            memory_bytes=self.memory_bytes + other.memory_bytes, vcpus=self.vcpus + other.vcpus
        )

    def __sub__(self, other: ResourceVector) -> ResourceVector:
        return ResourceVector(
            memory_bytes=self.memory_bytes - other.memory_bytes, vcpus=self.vcpus - other.vcpus
        )

    def clamped(self) -> ResourceVector:
        """Return the vector with negative components set to 0."""
        return ResourceVector(memory_bytes=max(0, self.memory_bytes), vcpus=max(0, self.vcpus))

    def maximum(self, other: ResourceVector) -> ResourceVector:
        """Return the larger value of each component."""
        return ResourceVector(
            memory_bytes=max(self.memory_bytes, other.memory_bytes),
            vcpus=max(self.vcpus, other.vcpus),
        )

    def fits_into(self, room: ResourceVector) -> bool:
        """Return whether every component is at most that of ``room``."""
        return self.memory_bytes <= room.memory_bytes and self.vcpus <= room.vcpus


ZERO = ResourceVector()
