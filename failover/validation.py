"""Which resources a failover reservation may have (spec failover, 13.2)."""

from __future__ import annotations

from collections.abc import Mapping

from failover.constants import RESOURCE_CPU, RESOURCE_MEMORY

ALLOWED = frozenset({RESOURCE_CPU, RESOURCE_MEMORY})


class InvalidResourceKey(ValueError):  # noqa: N818 - the published name
    """A reservation has a resource that nobody can hold.

    Attributes:
        key: The resource.
    """

    def __init__(self, key: str) -> None:
        super().__init__(
            f"invalid resource {key}: allowed are {RESOURCE_CPU} and {RESOURCE_MEMORY}"
        )
        self.key = key


class InvalidResourceAmount(ValueError):  # noqa: N818 - like the other
    """A reservation has so little of a resource that no VM can be in it."""


def validate_amounts(*, memory_bytes: int, vcpus: int) -> None:
    """Check how much a stored failover reservation holds.

    Raises:
        InvalidResourceAmount: If it is nothing of ``cpu`` or of ``memory``.
    """
    for key, amount in ((RESOURCE_CPU, vcpus), (RESOURCE_MEMORY, memory_bytes)):
        if amount <= 0:
            raise InvalidResourceAmount(f"invalid amount of {key}: {amount}, no VM fits in")


def validate_resources(resources: Mapping[str, object] | None) -> None:
    """Check the resources of a failover reservation; none at all are accepted.

    Raises:
        InvalidResourceKey: If one is neither ``cpu`` nor ``memory``.

    Source: spec failover, 13.2.
    """
    for key in sorted(resources or ()):
        if key not in ALLOWED:
            raise InvalidResourceKey(key)
