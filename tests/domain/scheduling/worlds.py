"""Random worlds and the slow, obvious scheduler that the fast one is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace

import numpy as np
from hypothesis import strategies as st

from scheduling.columns import FloatColumn, text_hash
from scheduling.engine import schedule
from scheduling.evaluation import CompiledPipeline
from scheduling.filters import FreeColumns
from scheduling.request import PlacementRequest
from scheduling.resources import GIB, ZERO, ResourceVector
from scheduling.table import HostTable
from scheduling.table_rows import HostAggregate, HostRow
from scheduling.weighers import Weigher, kvm_binpack

TRAITS = tuple(f"T{number}" for number in range(70))  # more than one 64-bit word
EXTERNAL, ACCELERATORS = "CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE", "COMPUTE_ACCELERATORS"
WORD_64 = 2**64 - 1


def gib(memory_gib: int, vcpus: int) -> ResourceVector:
    return ResourceVector(memory_bytes=memory_gib * GIB, vcpus=vcpus)


def ask(memory_gib: int = 1, vcpus: int = 1, **fields: object) -> PlacementRequest:
    base = PlacementRequest(request_key="r", memory_bytes=memory_gib * GIB, vcpus=vcpus)
    return replace(base, **fields)  # type: ignore[arg-type]  # keyword pass-through


def roomy(name: str, **fields: object) -> HostRow:
    base = HostRow(name=name, host_id=text_hash(name) % 10_000, effective=gib(1000, 1000))
    return replace(base, **fields)  # type: ignore[arg-type]  # keyword pass-through


def names_that_pass(
    rows: Iterable[HostRow], request: PlacementRequest, pipeline: CompiledPipeline
) -> list[str]:
    decision = schedule(HostTable.from_rows(rows), request, pipeline, max_candidates=0)
    return sorted(candidate.host_name for candidate in decision.top)


def readable(value: object) -> str:
    """Return a part of a table's row as the name of a test."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key.rpartition(':')[2]} {readable(one)}" for key, one in value.items())
    if isinstance(value, set | frozenset):  # the order of a set differs between processes
        return " ".join(sorted(readable(one) for one in value)) or "none"
    if isinstance(value, tuple | list):
        return " ".join(readable(one) for one in value) or "none"
    if is_dataclass(value) and not hasattr(value, "name"):
        shown = {field.name: getattr(value, field.name) for field in fields(value)}
        return f"{type(value).__name__} {readable(shown)}"
    name = getattr(value, "name", None)
    return str(value if name is None else name) or "empty"


vectors = st.builds(gib, st.integers(0, 6), st.integers(0, 6))
trait_sets = st.frozensets(
    st.sampled_from((*TRAITS[:3], TRAITS[-1], EXTERNAL, ACCELERATORS)), max_size=4
)
tenant_aggregates = st.sampled_from(["", "p1", "p2"]).map(
    lambda tenant: HostAggregate(uuid=f"of-{tenant}", metadata={"filter_tenant_id": tenant})
)
host_rows = st.builds(
    HostRow,
    name=st.sampled_from([f"host-{number}" for number in range(9)]),
    host_id=st.integers(1, 99),
    zone=st.sampled_from(["az-1", "az-1", "az-2", ""]),
    is_ready=st.sampled_from([True, True, True, False]),
    takes_slots=st.sampled_from([True, True, True, False]),
    hypervisor_type=st.sampled_from(["kvm", "QEMU", "ch", "CH", "", "vmware"]),
    traits=trait_sets,
    allowed_projects=st.sampled_from([(), (), ("p1",), ("p1", "p2"), ("p2", "p1"), ("p3",)]),
    effective=st.builds(gib, st.integers(0, 24), st.integers(0, 24)),
    allocated=vectors,
    committed=vectors,
    failover=st.sampled_from([ZERO, gib(2, 1)]),
    in_flight=st.sampled_from([ZERO, gib(1, 1)]),
    aggregates=st.lists(tenant_aggregates, max_size=2).map(tuple),
)
host_of_all_traits = HostRow(name="all-traits", host_id=100, traits=TRAITS, effective=gib(9, 9))
worlds = st.builds(
    lambda rows, extra: [*extra, *rows],
    st.lists(host_rows, max_size=9, unique_by=lambda row: row.name),
    st.sampled_from([(), (host_of_all_traits,)]),
)
maybe_hosts = st.none() | st.frozensets(
    st.sampled_from(["host-1", "host-2", "host-3", "host-x"]), max_size=3
)
requests = st.builds(
    PlacementRequest,
    request_key=st.text("ab12", min_size=1, max_size=4),
    memory_bytes=st.sampled_from([1, GIB, 2 * GIB, 3 * GIB + 7, 8 * GIB]),
    vcpus=st.integers(1, 4),
    zone=st.sampled_from(["", "", "az-1", "az-2", "az-9"]),
    project_id=st.sampled_from(["", "p1", "p2", "p9"]),
    hypervisor_type=st.sampled_from([None, None, None, "qemu", "KVM", "ch", "vmware"]),
    required_traits=st.sampled_from(
        [frozenset(), frozenset(), frozenset({"T1"}), frozenset({"?"})]
    ),
    forbidden_traits=st.sampled_from([frozenset(), frozenset({"T69"}), frozenset({"T2", "?"})]),
    ignore_hosts=st.none() | maybe_hosts,
    force_hosts=st.none() | st.none() | maybe_hosts,
    ignored_kinds=st.frozensets(st.sampled_from(["committed", "failover", "in_flight"])),
    assume_empty_hosts=st.booleans(),
    domain_name=st.sampled_from([None, None, "monsoon3", "iaas-1"]),
    extra_specs=st.sampled_from([{}, {}, {"accel:device_profile": "gpu"}]),
)
"""Requests of every kind; hosts of a world often refuse them, which is the point."""

easy_requests = st.builds(
    PlacementRequest,
    request_key=st.text("abcdef123456", min_size=1, max_size=6),
    memory_bytes=st.sampled_from([GIB, 2 * GIB, 3 * GIB]),
    vcpus=st.integers(1, 2),
    zone=st.sampled_from(["", "az-1"]),
    ignored_kinds=st.sampled_from([frozenset(), frozenset({"committed"})]),
)
"""Requests that mostly fit, so that a batch fills hosts up."""


def free_of(row: HostRow, request: PlacementRequest) -> ResourceVector:
    free = row.effective
    if not request.assume_empty_hosts:
        free = free - row.allocated
    if "committed" not in request.ignored_kinds:
        free = free - row.committed
    if "failover" not in request.ignored_kinds:
        free = free - row.failover
    if "in_flight" not in request.ignored_kinds:
        free = free - row.in_flight
    return free


def has_requested_type(row: HostRow, request: PlacementRequest) -> bool:
    if request.hypervisor_type is None:
        return True
    same = {"kvm": "qemu"}
    host_type = row.hypervisor_type.lower()
    host_type = same.get(host_type, host_type)
    wanted = request.hypervisor_type.lower()
    return host_type in {"qemu", "ch"} and host_type == same.get(wanted, wanted)


def obeys_instructions(row: HostRow, request: PlacementRequest) -> bool:
    if request.ignore_hosts is not None and row.name in request.ignore_hosts:
        return False
    return request.force_hosts is None or row.name in request.force_hosts


def has_requested_traits(row: HostRow, request: PlacementRequest) -> bool:
    return set(row.traits) >= request.required_traits and not (
        set(row.traits) & request.forbidden_traits
    )


def is_open_to(row: HostRow, request: PlacementRequest) -> bool:
    return (
        not request.project_id
        or not row.allowed_projects
        or request.project_id in row.allowed_projects
    )


def is_for_domain(row: HostRow, request: PlacementRequest) -> bool:
    return not (request.domain_name or "").startswith("iaas-") or EXTERNAL in row.traits


def has_accelerators(row: HostRow, request: PlacementRequest) -> bool:
    return "accel:device_profile" not in request.extra_specs or ACCELERATORS in row.traits


def is_in_its_aggregates(row: HostRow, request: PlacementRequest) -> bool:
    tenants = [name for one in row.aggregates for name in one.metadata["filter_tenant_id"].split()]
    return not tenants or request.project_id in tenants


def verdict(step: str, row: HostRow, request: PlacementRequest, blocked: ResourceVector) -> bool:
    if step == "filter_has_enough_capacity":
        free = free_of(row, request) - blocked
        return free.memory_bytes >= request.memory_bytes and free.vcpus >= request.vcpus
    if step == "filter_status_conditions":
        return row.is_ready
    if step == "filter_takes_slots":
        return row.takes_slots
    if step == "filter_correct_az":
        return not request.zone or row.zone == request.zone
    static = {
        "filter_host_instructions": obeys_instructions,
        "filter_capabilities": has_requested_type,
        "filter_has_requested_traits": has_requested_traits,
        "filter_external_customer": is_for_domain,
        "filter_has_accelerators": has_accelerators,
        "filter_allowed_projects": is_open_to,
        "filter_aggregate_metadata": is_in_its_aggregates,
    }
    return static[step](row, request)


def mix_by_hand(name: str, request_key: str) -> int:
    mixed = ((text_hash(name) ^ text_hash(request_key)) + 0x9E3779B97F4A7C15) & WORD_64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & WORD_64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & WORD_64
    return mixed ^ (mixed >> 31)


@dataclass
class SlowDecision:
    host_name: str | None
    ordered: list[str]
    removed: list[int]
    closest: str | None


@dataclass
class SlowScheduler:
    """Looks at every host for every request; ``weights`` and ``sign`` are those of binpack."""

    rows: list[HostRow]
    steps: list[str]
    weights: Mapping[str, float]
    multiplier: float
    blocked: dict[str, ResourceVector] = field(default_factory=dict)

    def blocked_on(self, row: HostRow) -> ResourceVector:
        return self.blocked.get(row.name, ZERO)

    def score(self, row: HostRow, request: PlacementRequest) -> float:
        used = row.effective - (free_of(row, request) - self.blocked_on(row)) + request.asked
        total = weight_sum = 0.0
        for resource, weight in sorted(self.weights.items(), reverse=True):  # memory, then cpu
            effective = row.effective.memory_bytes if resource == "memory" else row.effective.vcpus
            taken = used.memory_bytes if resource == "memory" else used.vcpus
            if effective > 0:
                total += weight * (taken / effective)
                weight_sum += weight
        activation = total / weight_sum if weight_sum else 0.0
        return self.multiplier * float(np.tanh(activation))

    def decide(self, request: PlacementRequest) -> SlowDecision:
        left = list(self.rows)
        removed = []
        for step in self.steps:
            kept = [row for row in left if verdict(step, row, request, self.blocked_on(row))]
            removed.append(len(left) - len(kept))
            left = kept
        left.sort(
            key=lambda row: (
                -self.score(row, request),
                mix_by_hand(row.name, request.request_key),
                row.name,
            )
        )
        ordered = [row.name for row in left]
        if ordered:
            self.blocked[ordered[0]] = self.blocked_on(left[0]) + request.asked
        return SlowDecision(
            host_name=ordered[0] if ordered else None,
            ordered=ordered,
            removed=removed,
            closest=None if ordered else self.closest(request),
        )

    def closest(self, request: PlacementRequest) -> str | None:
        nearest: list[tuple[float, str]] = []
        for row in self.rows:
            steps = [step for step in self.steps if step != "filter_has_enough_capacity"]
            if all(verdict(step, row, request, ZERO) for step in steps):
                free = free_of(row, request) - self.blocked_on(row)
                share = min(free.memory_bytes / request.memory_bytes, free.vcpus / request.vcpus)
                nearest.append((-share, row.name))
        return min(nearest)[1] if nearest else None


def fullest_of_all(*, is_row_local: bool) -> Weigher:
    """Binpack in disguise; not row-local, the engine must weigh all survivors every time."""
    inner = kvm_binpack(count_reservations=True)

    def activation(table: HostTable, request: PlacementRequest, free: FreeColumns) -> FloatColumn:
        return inner.activation(table, request, free)

    return Weigher(name="fullest_of_all", activation=activation, is_row_local=is_row_local)
