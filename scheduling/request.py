"""What a caller asks of the scheduler (spec scheduling, 2.2, 3, 7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from scheduling.intents import CallOptions, Intent
from scheduling.needs import NO_NEEDS, Needs
from scheduling.quota import QuotaFacts
from scheduling.reservations import (
    RESERVATION_KINDS,
)
from scheduling.resources import ResourceVector

HARDWARE_VERSION_KEY = "quota:hw_version"
HYPERVISOR_TYPE_KEY = "capabilities:hypervisor_type"
_TRAIT_PREFIX = "trait:"
#: Longest text that is read as a number of VMs, and the largest such number.
LONGEST_RULE = 20
MOST_PER_HOST = (1 << 31) - 1
_NOTHING: Mapping[str, str] = MappingProxyType({})


class UnplaceableRequestError(ValueError):
    """A request without memory or without vCPUs, which every host would satisfy.

    Source: spec scheduling, 7.11 step C (product: the request fails).
    """

    def __init__(self, request_key: str) -> None:
        super().__init__(f"request {request_key!r} asks for no memory or no vCPUs")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceGroup:
    """The server group of a VM.

    Attributes:
        policy: ``affinity``, ``anti-affinity``, ``soft-affinity`` or ``soft-anti-affinity``.
        hosts: Hosts of its members, as the caller says.
        members: Uuids of its VMs.
        max_per_host: Limit of hard anti-affinity, see :func:`max_per_host_from_rule`.
    """

    policy: str
    hosts: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    max_per_host: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedDestination:
    """Where a request wants to go.

    Attributes:
        host: The only host wanted; empty means any.
        aggregates: Conjunction of comma-separated disjunctions of aggregate uuids.
    """

    host: str = ""
    aggregates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """One VM-shaped block that needs one host.

    Attributes:
        request_key: Uuid of the VM, or name of the slot: tie-breaks hash it, failover and
            in-flight blocks and server groups know the VM by it.
        memory_bytes: Memory asked for, more than 0.
        vcpus: vCPUs asked for, more than 0 (0 only for counting capacity).
        zone: Availability zone; empty means any.
        project_id: Project that will own the block; empty for none, which is on no list of
            projects of an aggregate (7.13) and for which hosts' own lists do not matter (7.12).
        hypervisor_type: Wanted hypervisor type, any case, ``kvm`` = ``qemu``; None means any.
        required_traits: Traits the host must have.
        forbidden_traits: Traits the host must not have.
        ignore_hosts: Hosts to leave out; None means not given.
        force_hosts: The only hosts to consider; None means not given, empty means no host at all.
        ignored_kinds: Reservation kinds of the table that block nothing for this request.
        assume_empty_hosts: Ignore what VMs have allocated. Committed slots then block their full
            size as far as the table has side tables; without them the committed column counts
            only what slots block beyond their VMs, so callers ignore the committed kind as well.
        lock_reservations: Never release committed slots to the requester.
        intent: What the placement is for; None if it is not known.
        intent_reason: Why, where it was inferred; empty where it was told.
        num_instances: Equal VMs that must all fit on the host.
        flavor_name: Flavor, for explanations.
        flavor_group: Group of the flavor as far as the caller knows it.
        extra_specs: Extra specs of the flavor; their traits and hypervisor type count besides
            those given on their own.
        image_properties: Properties of the image; None means not given.
        domain_name: Name of the project's domain; None means not given.
        domain_is_unresolved: Whether the domain was looked up in vain: restricted hosts then
            cannot be told apart, and the request fails.
        source_host: Where a VM comes from that is migrated live.
        resource_group: Flavor group as the hint says; empty means not given.
        instance_group: Server group of the VM.
        requested_destination: Where the caller wants it.
        hosts: The caller's candidates; None means all.
        restrict_to_hosts: Hosts to consider even where a pipeline ignores the caller's
            candidates; None means all. May be the same object as ``hosts``.
        weights: The caller's weight of each host; None means 0 for all.
        quota: What the quota filter judges by; None means that there is no quota record.
        needs: What a slot needs of network, disk I/O and GPUs; nothing for VMs.
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
    lock_reservations: bool = False
    intent: Intent | None = Intent.CREATE
    intent_reason: str = ""
    num_instances: int = 1
    flavor_name: str = ""
    flavor_group: str = ""
    extra_specs: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    image_properties: Mapping[str, object] | None = None
    domain_name: str | None = None
    domain_is_unresolved: bool = False
    source_host: str = ""
    resource_group: str = ""
    instance_group: InstanceGroup | None = None
    requested_destination: RequestedDestination | None = None
    hosts: Sequence[str] | None = None
    restrict_to_hosts: Collection[str] | None = None
    weights: Mapping[str, float] | None = None
    quota: QuotaFacts | None = None
    needs: Needs = NO_NEEDS

    def __post_init__(self) -> None:
        if self.memory_bytes < 0 or self.vcpus < 0 or self.num_instances < 0:
            raise ValueError("a placement request cannot ask for negative resources")
        unknown = sorted(self.ignored_kinds - RESERVATION_KINDS)
        if unknown:
            raise ValueError(f"unknown reservation kind: {', '.join(unknown)}")

    @property
    def one_vm(self) -> ResourceVector:
        """Return memory in bytes and vCPUs of one of the equal VMs as one vector."""
        return ResourceVector(memory_bytes=self.memory_bytes, vcpus=self.vcpus)

    @property
    def asked(self) -> ResourceVector:
        """Return memory in bytes and vCPUs of all instances together as one vector."""
        count = max(1, self.num_instances)
        one = self.one_vm
        return ResourceVector(memory_bytes=one.memory_bytes * count, vcpus=one.vcpus * count)

    @property
    def commitment_group(self) -> str:
        """Return the flavor group: the caller's, else ``quota:hw_version`` as its alias.

        Source: spec scheduling, 15.10.
        """
        return self.flavor_group or self.extra_specs.get(HARDWARE_VERSION_KEY, "")

    def with_options(self, options: CallOptions) -> PlacementRequest:
        """Return the request with call-time options combined: flags by OR, kinds united.

        Source: spec scheduling, 3.
        """
        flags = options.assume_empty_hosts or options.lock_reservations
        if not (flags or options.ignored_reservation_types):
            return self
        return replace(
            self,
            assume_empty_hosts=self.assume_empty_hosts or options.assume_empty_hosts,
            lock_reservations=self.lock_reservations or options.lock_reservations,
            ignored_kinds=self.ignored_kinds | options.ignored_reservation_types,
        )


def max_per_host_from_rule(rule: object) -> int:
    """Return the limit of the group rule ``max_server_per_host``, 1 if it does not say.

    Whole numbers count as integers, integral floats and texts; the rest and numbers below 1 are
    as good as missing, and none is larger than any group.

    Source: spec scheduling, 7.10 (product rule).
    """
    limit = 1
    is_whole_float = isinstance(rule, float) and rule.is_integer()
    is_digits = isinstance(rule, str) and len(rule) <= LONGEST_RULE and rule.strip().isdecimal()
    if is_whole_float or is_digits or (isinstance(rule, int) and not isinstance(rule, bool)):
        limit = int(rule)  # type: ignore[call-overload]  # one of the three kinds above
    return max(1, min(limit, MOST_PER_HOST))


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
