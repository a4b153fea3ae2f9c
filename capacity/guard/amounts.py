"""Amounts of everything that a host may lack: memory, vCPUs and what agents report beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

from scheduling.needs import Needs
from scheduling.resources import ResourceVector


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What a host lacks, or a slot gives back; negative in differences.

    Attributes:
        network_bps: Bytes per second, as is ``disk_io_bps``.
    """

    memory_bytes: int = 0
    vcpus: int = 0
    network_bps: int = 0
    disk_io_bps: int = 0
    gpus: int = 0

    @classmethod
    def of(cls, vector: ResourceVector, others: Needs = Needs()) -> Amounts:  # noqa: B008 - a tuple
        """Return memory and vCPUs with what there is of the other resources."""
        return cls(
            memory_bytes=vector.memory_bytes,
            vcpus=vector.vcpus,
            network_bps=others.network,
            disk_io_bps=others.disk_io,
            gpus=others.gpu,
        )

    @classmethod
    def from_each(cls, amounts: Iterable[int]) -> Amounts:
        """Return amounts in the order of ``each``."""
        return cls(**dict(zip(NAMES, amounts, strict=True)))

    def each(self) -> tuple[int, ...]:
        """Return the amounts in one order."""
        return (self.memory_bytes, self.vcpus, self.network_bps, self.disk_io_bps, self.gpus)

    def __add__(self, other: Amounts) -> Amounts:
        pairs = zip(self.each(), other.each(), strict=True)
        return Amounts.from_each(one + two for one, two in pairs)

    def __sub__(self, other: Amounts) -> Amounts:
        pairs = zip(self.each(), other.each(), strict=True)
        return Amounts.from_each(one - two for one, two in pairs)

    def clamped(self) -> Amounts:
        """Return the amounts with 0 for negative ones."""
        return Amounts.from_each(max(0, amount) for amount in self.each())

    def smaller(self, other: Amounts) -> Amounts:
        """Return the smaller of each."""
        return Amounts.from_each(map(min, self.each(), other.each()))

    def fits_into(self, room: Amounts) -> bool:
        """Return whether each is at most that of ``room``."""
        return all(one <= two for one, two in zip(self.each(), room.each(), strict=True))

    def named(self) -> dict[str, int]:
        """Return by name what is not nothing."""
        return {name: amount for name, amount in zip(NAMES, self.each(), strict=True) if amount}


NAMES: Final = tuple(field.name for field in fields(Amounts))
NOTHING: Final = Amounts()
