"""What one resource provider is, as plain values (spec placement, 5.1 and 5.3)."""

from __future__ import annotations

from typing import NamedTuple

SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"
"""A provider with this trait serves every tree that has a member of one of its aggregates."""


class ProviderRow(NamedTuple):
    """A provider with its place in a tree, its traits and its aggregates.

    A tuple rather than a dataclass since a full load makes one for each of many thousand rows.

    Attributes:
        provider_id: Database key; trees and their members are in the order of these.
        uuid: In its canonical form of 36 characters.
        parent_id: Key of the parent, None for a root.
        root_id: Key of the root, its own for a root.
        traits: Names in alphabetical order.
        aggregates: Uuids.
        name: Its own.
        generation: Grows with every write.
        modified_at: Newest change, seconds since 1970.
    """

    provider_id: int
    uuid: str
    parent_id: int | None
    root_id: int
    traits: tuple[str, ...] = ()
    aggregates: tuple[str, ...] = ()
    name: str = ""
    generation: int = 0
    modified_at: float = 0.0


class InventoryRow(NamedTuple):
    """What a provider has of a class; amounts in the unit of the class.

    Attributes:
        held: What commitments and failover keep free there and candidates must leave, 0 where
            held capacity is not subtracted.
    """

    provider_id: int
    resource_class: str
    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 2147483647
    step_size: int = 1
    allocation_ratio: float = 1.0
    used: int = 0
    held: int = 0
