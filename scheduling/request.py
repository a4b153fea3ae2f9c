"""What a caller asks of the scheduler (spec scheduling, 3, 7.4, 7.6, 7.7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.resources import ResourceVector
from scheduling.table import normalized_hypervisor_type

KIND_COMMITTED = "committed"
KIND_FAILOVER = "failover"
KIND_IN_FLIGHT = "in_flight"
RESERVATION_KINDS = frozenset({KIND_COMMITTED, KIND_FAILOVER, KIND_IN_FLIGHT})

_TRAIT_PREFIX = "trait:"
_HYPERVISOR_TYPE_KEY = "capabilities:hypervisor_type"


class UnplaceableRequestError(ValueError):
    """A request without memory or without vCPUs, which every host would satisfy.

    Source: spec scheduling, 7.11 step C (product: the request fails).
    """

    def __init__(self, request_key: str) -> None:
        super().__init__(f"request {request_key!r} asks for no memory or no vCPUs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """One VM-shaped block that needs one host.

    Attributes:
        request_key: Input of the tie-break hash, for example the uuid of the slot or VM.
        memory_bytes: Memory asked for, more than 0.
        vcpus: vCPUs asked for, more than 0 (0 only for counting capacity).
        zone: Availability zone; empty means any.
        project_id: Project that will own the block; empty means that tenants do not matter.
        hypervisor_type: Wanted hypervisor type, any case, ``kvm`` = ``qemu``; None means any.
        required_traits: Traits the host must have.
        forbidden_traits: Traits the host must not have.
        ignore_hosts: Hosts to leave out; None means not given.
        force_hosts: The only hosts to consider; None means not given, empty means no host at all.
        ignored_kinds: Reservation kinds of the table that block nothing for this request.
        assume_empty_hosts: Ignore what VMs have allocated. The committed column counts only what
            slots block beyond their VMs, so callers ignore the committed kind along with it.
    """

    request_key: str
    memory_bytes: int
    vcpus: int
    zone: str = ""
    project_id: str = ""
    hypervisor_type: str | None = None
    required_traits: frozenset[str] = frozenset()
    forbidden_traits: frozenset[str] = frozenset()
    ignore_hosts: frozenset[str] | None = None
    force_hosts: frozenset[str] | None = None
    ignored_kinds: frozenset[str] = frozenset()
    assume_empty_hosts: bool = False

    def __post_init__(self) -> None:
        if self.memory_bytes < 0 or self.vcpus < 0:
            raise ValueError("a placement request cannot ask for negative resources")
        unknown = sorted(self.ignored_kinds - RESERVATION_KINDS)
        if unknown:
            raise ValueError(f"unknown reservation kind: {', '.join(unknown)}")

    @property
    def asked(self) -> ResourceVector:
        """Return memory in bytes and vCPUs as one vector."""
        return ResourceVector(memory_bytes=self.memory_bytes, vcpus=self.vcpus)


def traits_from_extra_specs(
    extra_specs: Mapping[str, str],
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the required and the forbidden traits of a flavor.

    Keys are ``trait:<NAME>`` (names compare exactly); values are ``required`` or ``forbidden`` in
    any case, others are ignored.

    Returns:
        ``(required, forbidden)``.

    Source: spec scheduling, 7.7 (product: case-insensitive values).
    """
    by_word: dict[str, set[str]] = {"required": set(), "forbidden": set()}
    for key, word in extra_specs.items():
        traits = by_word.get(word.lower())
        if traits is not None and key.startswith(_TRAIT_PREFIX):
            traits.add(key.removeprefix(_TRAIT_PREFIX))
    return frozenset(by_word["required"]), frozenset(by_word["forbidden"])


def hypervisor_type_from_extra_specs(extra_specs: Mapping[str, str]) -> str | None:
    """Return the normalised hypervisor type a flavor asks for, None if it asks for none.

    Operators (``<in>``, ``<or>``, ``s==``) are not understood yet: such an expression is returned
    as it is and matches no host, so that a block never lands on a wrong one.

    Source: spec scheduling, 7.6 (product: case-insensitive, ``kvm`` and ``qemu`` are equal).
    """
    wanted = extra_specs.get(_HYPERVISOR_TYPE_KEY)
    return None if wanted is None else normalized_hypervisor_type(wanted)
