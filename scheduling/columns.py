"""Encoding of host rows into columns: codes, bit sets, figures (spec scheduling, 14.3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduling.table_rows import HostRow

BoolColumn: TypeAlias = NDArray[np.bool_]
Int64Column: TypeAlias = NDArray[np.int64]
Int32Column: TypeAlias = NDArray[np.int32]
Int16Column: TypeAlias = NDArray[np.int16]
UInt64Column: TypeAlias = NDArray[np.uint64]
FloatColumn: TypeAlias = NDArray[np.float64]

_Word = TypeVar("_Word", bound=Hashable)

BITS_PER_WORD = 64
_WORD_MASK = 2**BITS_PER_WORD - 1

CAPACITY_COLUMNS: tuple[str, ...] = (
    "eff_memory_bytes",
    "eff_vcpus",
    "alloc_memory_bytes",
    "alloc_vcpus",
    "committed_memory_bytes",
    "committed_vcpus",
    "failover_memory_bytes",
    "failover_vcpus",
    "in_flight_memory_bytes",
    "in_flight_vcpus",
)


def normalized_hypervisor_type(name: str) -> str:
    """Return the hypervisor type in lower case with ``kvm`` written as ``qemu``.

    Source: spec scheduling, 7.6 (product rule).
    """
    lowered = name.strip().lower()
    return "qemu" if lowered == "kvm" else lowered


def text_hash(text: str) -> int:
    """Return a stable unsigned 64-bit hash of a text, the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


CODE_COLUMNS: Mapping[str, tuple[str, str, Callable[[HostRow], Hashable]]] = MappingProxyType(
    {
        "zone": ("zones", "int16", lambda row: row.zone),
        "hypervisor_type": (
            "hypervisor_types",
            "int16",
            lambda row: normalized_hypervisor_type(row.hypervisor_type),
        ),
        "cpu_arch": ("cpu_archs", "int16", lambda row: row.cpu_arch),
        "building_block": ("building_blocks", "int16", lambda row: row.building_block),
        "maintenance": ("maintenance_modes", "int16", lambda row: row.maintenance),
        "tenant_class": ("tenant_classes", "int32", lambda row: frozenset(row.allowed_projects)),
        "aggregate_tenant_class": (
            "aggregate_tenant_classes",
            "int32",
            lambda row: row.aggregate_tenants(),
        ),
    }
)
"""Column -> (vocabulary, type, word of a host); a column holds indices into its vocabulary."""

BIT_COLUMNS: Mapping[str, tuple[str, Callable[[HostRow], Collection[str]]]] = MappingProxyType(
    {
        "traits": ("trait_bit", HostRow.all_traits),
        "aggregates": (
            "aggregate_bit",
            lambda row: [aggregate.uuid for aggregate in row.aggregates],
        ),
        "features": ("feature_bit", lambda row: row.features),
        "cpu_modes": ("cpu_mode_bit", lambda row: row.cpu_modes),
        "devices": ("device_bit", lambda row: row.devices),
    }
)
"""Column -> (bit numbers, words of a host); a row of a column is a bit set in 64-bit words."""


def extended_codes(
    known: tuple[_Word, ...], wanted: Sequence[_Word]
) -> tuple[tuple[_Word, ...], list[int]]:
    """Return the vocabulary with new words appended, and the code of each wanted word."""
    code_of = {word: code for code, word in enumerate(known)}
    codes = [code_of.setdefault(word, len(code_of)) for word in wanted]
    return (tuple(code_of) if len(code_of) > len(known) else known), codes


def extended_bits(
    known: Mapping[str, int], word_sets: Iterable[Collection[str]]
) -> Mapping[str, int]:
    """Return the bit numbers with those of new words appended in alphabetical order."""
    new = {word for words in word_sets for word in words if word not in known}
    if not new:
        return known
    bits = dict(known)
    for word in sorted(new):
        bits[word] = len(bits)
    return MappingProxyType(bits)


def word_count(bits: Mapping[str, int]) -> int:
    """Return how many 64-bit words a bit set needs, at least one; the last is partly used."""
    return max(1, -(-len(bits) // BITS_PER_WORD))


def bit_words(
    word_sets: Sequence[Collection[str]], bits: Mapping[str, int], words: int
) -> UInt64Column:
    """Return uint64[len(word_sets), words] with the bits of each set; unknown words have none."""
    column = np.zeros((len(word_sets), words), dtype=np.uint64)
    for index, members in enumerate(word_sets):
        row_bits = 0
        for member in members:
            if member in bits:
                row_bits |= 1 << bits[member]
        for word in range(words):
            column[index, word] = (row_bits >> (word * BITS_PER_WORD)) & _WORD_MASK
    return column


def capacity_columns(rows: Sequence[HostRow]) -> dict[str, Int64Column]:
    """Return the capacity figures of hosts as one int64 column for each name."""
    figures = [
        (
            row.effective.memory_bytes,
            row.effective.vcpus,
            row.allocated.memory_bytes,
            row.allocated.vcpus,
            row.committed.memory_bytes,
            row.committed.vcpus,
            row.failover.memory_bytes,
            row.failover.vcpus,
            row.in_flight.memory_bytes,
            row.in_flight.vcpus,
        )
        for row in rows
    ]
    by_column = np.ascontiguousarray(np.array(figures, dtype=np.int64).T)
    return dict(zip(CAPACITY_COLUMNS, by_column, strict=True))


def frozen(column: NDArray[Any]) -> NDArray[Any]:  # Any: whatever dtype the column has
    """Return the same array, no longer writeable."""
    column.flags.writeable = False
    return column
