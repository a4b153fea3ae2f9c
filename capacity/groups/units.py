"""Units of LIQUID resources and RAM (spec commitments, 3.2; spec liquid, 5, 6.4, 9.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from capacity.groups.flavor_groups import FlavorGroupDef
from scheduling.resources import MIB

DEFAULT_RAM_UNIT_MIB = 1024
MIB_PER_GIB = 1024
VIDEO_RAM_TOLERANCE_MIB = 16
MAX_UNIT_FACTOR = (1 << 64) - 1
MAX_LEDGER_AMOUNT = (1 << 63) - 1

BASE_COUNTED_LEGACY = ""
BASE_PIECE = "piece"
BASE_BYTES = "B"

_BYTE_SYMBOLS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_SYMBOL_FACTORS: dict[str, tuple[str, int]] = {
    BASE_PIECE: (BASE_PIECE, 1),
    **{symbol: (BASE_BYTES, 1 << (10 * power)) for power, symbol in enumerate(_BYTE_SYMBOLS)},
}
_MULTIPLE = re.compile(r"([0-9]{1,20}) ([A-Za-z]+)")


class UnitError(ValueError):
    """A unit or an amount with unit that cannot be read, converted or stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A LIQUID unit.

    Attributes:
        base: ``piece`` (counted), ``B`` (bytes) or empty (counted, legacy form without a name).
        factor: How many of the base one unit is; at least 1.
    """

    base: str
    factor: int = 1

    @property
    def is_counted(self) -> bool:
        """Whether the unit counts things instead of bytes."""
        return self.base != BASE_BYTES

    def __str__(self) -> str:
        return format_unit(self)


def ram_unit_mib(ram_unit_gib: int | None) -> int:
    """Return the size of one declared RAM unit in MiB; unset, 0 or less means 1 GiB.

    Raises:
        UnitError: The unit exceeds 2^64 bytes.

    Source: spec commitments, 3.2; spec liquid, 6.4.
    """
    if ram_unit_gib is None or ram_unit_gib <= 0:
        return DEFAULT_RAM_UNIT_MIB
    unit_mib = ram_unit_gib * MIB_PER_GIB
    if unit_mib * MIB > MAX_UNIT_FACTOR:
        raise UnitError(f"a RAM unit of {ram_unit_gib} GiB exceeds 2^64 bytes")
    return unit_mib


def declared_units_to_gib(amount_units: int, unit_mib: int) -> int:
    """Return an amount of declared RAM units in GiB (floor); negative markers stay as they are.

    Args:
        amount_units: Amount in declared units, or a negative marker such as -1 (unlimited).
        unit_mib: Size of one declared unit in MiB, positive.

    Source: spec liquid, 6.4.
    """
    if amount_units < 0:
        return amount_units
    return amount_units * unit_mib // MIB_PER_GIB


def gib_to_declared_units(amount_gib: int, unit_mib: int) -> int:
    """Return an amount of GiB in declared RAM units (floor); negative markers stay as they are.

    Args:
        amount_gib: Amount in GiB, or a negative marker such as -1 (unlimited).
        unit_mib: Size of one declared unit in MiB, positive.

    Source: spec liquid, 6.4.
    """
    if amount_gib < 0:
        return amount_gib
    return amount_gib * MIB_PER_GIB // unit_mib


def declared_units_to_bytes(amount_units: int, unit_mib: int) -> int:
    """Return an amount of declared RAM units in bytes.

    Args:
        amount_units: Amount in declared units, not negative.
        unit_mib: Size of one declared unit in MiB, positive.

    Raises:
        UnitError: The amount is negative or more bytes than the ledger can store.

    Source: spec commitments, 3.2.
    """
    amount_bytes = amount_units * unit_mib * MIB
    if not 0 <= amount_bytes <= MAX_LEDGER_AMOUNT:
        raise UnitError(f"{amount_units} units of {unit_mib} MiB are not a storable amount")
    return amount_bytes


def bytes_to_declared_units(memory_bytes: int, unit_mib: int) -> int:
    """Return how many whole declared RAM units an amount of bytes holds (floor).

    Args:
        memory_bytes: Memory in bytes, not negative.
        unit_mib: Size of one declared unit in MiB, positive.
    """
    return memory_bytes // (unit_mib * MIB)


def ram_unit_text(unit_mib: int) -> str:
    """Return the unit string that Limes is told for a RAM unit of that many MiB.

    Raises:
        UnitError: The unit exceeds 2^64 bytes.

    Source: spec commitments, 3.2.
    """
    return format_unit(_checked_unit(BASE_BYTES, unit_mib * MIB))


def parse_unit(text: str) -> Unit:
    """Read a unit string.

    Raises:
        UnitError: It is not a symbol or a positive multiple of one, or exceeds 2^64.

    Source: spec liquid, 5.
    """
    if text == "":
        return Unit(base=BASE_COUNTED_LEGACY)
    multiple, symbol = 1, text
    if match := _MULTIPLE.fullmatch(text):
        multiple, symbol = int(match[1]), match[2]
    if symbol not in _SYMBOL_FACTORS or multiple == 0:
        raise UnitError(f"not a unit: {text!r}")
    base, factor = _SYMBOL_FACTORS[symbol]
    return _checked_unit(base, multiple * factor)


def format_unit(unit: Unit) -> str:
    """Return the shortest exact text of a unit: the largest symbol that divides it.

    Source: spec liquid, 5.
    """
    if unit.base == BASE_COUNTED_LEGACY:
        return ""
    symbols = [
        (factor, symbol)
        for symbol, (base, factor) in _SYMBOL_FACTORS.items()
        if base == unit.base and unit.factor % factor == 0
    ]
    factor, symbol = max(symbols)
    multiple = unit.factor // factor
    return symbol if multiple == 1 else f"{multiple} {symbol}"


def usage_units(
    memory_bytes: int,
    *,
    group: FlavorGroupDef | None,
    unit_mib: int,
    tolerance_mib: int = VIDEO_RAM_TOLERANCE_MIB,
) -> int:
    """Return the declared RAM units that one VM uses (floor).

    Groups of fixed ratio count in smallest flavors. Others count in declared units, forgiving the
    video RAM that some flavors carve out.

    Args:
        memory_bytes: Memory of the VM's flavor in bytes.
        group: The VM's flavor group, None if unknown.
        unit_mib: Size of one declared unit in MiB.
        tolerance_mib: MiB added to the memory before dividing.

    Source: spec liquid, 9.2.
    """
    memory_mib = memory_bytes // MIB
    if group is not None and group.has_fixed_ratio:
        return memory_mib // group.derived_ram_unit_mib
    return (memory_mib + tolerance_mib) // unit_mib


def _checked_unit(base: str, factor: int) -> Unit:
    if not 0 < factor <= MAX_UNIT_FACTOR:
        raise UnitError(f"a unit of {factor} {base} is out of range")
    return Unit(base=base, factor=factor)
