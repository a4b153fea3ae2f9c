"""Random worlds with everything in them, and the slow rule of each filter for one host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from scheduling.engine import passing_hosts, table_for
from scheduling.evaluation import CompiledPipeline
from scheduling.filters import Filter
from scheduling.intents import Intent
from scheduling.quota import CommitmentFact, QuotaFacts
from scheduling.request import InstanceGroup, PlacementRequest, RequestedDestination
from scheduling.reservations import ReservationIndex
from scheduling.resources import GIB, ZERO, ResourceVector
from scheduling.table import HostTable
from scheduling.table_rows import HostAggregate, HostRow, ReservationRow

from .worlds import gib

HOSTS = tuple(f"host-{number}" for number in range(6))
VMS = tuple(f"vm-{number}" for number in range(6))
EXTERNAL = "CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE"
TRAITS = ("A", "B", EXTERNAL, "COMPUTE_ACCELERATORS", "COMPUTE_NET_VIRTIO_PACKED")


def blocks_by_host(
    reservations: Iterable[ReservationRow],
) -> Mapping[str, Mapping[str, ResourceVector]]:
    """Return what reservations block, as the columns of the host table hold it.

    Everything blocks its target and its observed host, also a slot of no resource group: the
    ledger counts it. Of the in-flight blocks of one placement one counts per host.

    Returns:
        Host name -> kind -> sum of blocks.

    Source: spec scheduling, 7.11 step B, rules 2 and 4; 16.3.
    """
    blocks: dict[str, dict[str, ResourceVector]] = {}
    seen_placements: set[tuple[str, str]] = set()
    for row in sorted(reservations, key=lambda row: row.reservation_id):
        for host in row.hosts():
            if row.placement_id and (row.placement_id, host) in seen_placements:
                continue
            seen_placements.add((row.placement_id, host))
            kinds = blocks.setdefault(host, {})
            kinds[row.kind] = kinds.get(row.kind, ZERO) + row.blocked
    return blocks


@dataclass(frozen=True)
class World:
    hosts: tuple[HostRow, ...]
    reservations: tuple[ReservationRow, ...] = ()

    def table(self) -> HostTable:
        blocks = blocks_by_host(self.reservations)
        rows = []
        for host in self.hosts:
            kinds = blocks.get(host.name, {})
            rows.append(
                replace(
                    host,
                    committed=kinds.get("committed", ZERO),
                    failover=kinds.get("failover", ZERO),
                    in_flight=kinds.get("in_flight", ZERO),
                )
            )
        side = ReservationIndex.from_rows(self.reservations)
        return HostTable.from_rows(rows).with_reservations(side)


def only(*steps: Filter) -> CompiledPipeline:
    return CompiledPipeline(name="only", filters=steps, weighers=())


def kept(table: HostTable, request: PlacementRequest, *steps: Filter) -> list[str]:
    pipeline = only(*steps)
    full = table_for(table, (request,), pipeline)
    mask = passing_hosts(full, request, pipeline)
    return sorted(name for name, passes in zip(full.names, mask, strict=True) if passes)


def pair(cpu_and_gib: tuple[int, int]) -> ResourceVector:
    return gib(cpu_and_gib[1], cpu_and_gib[0])


small_vectors = st.builds(gib, st.integers(0, 4), st.integers(0, 4))
aggregates = st.builds(
    HostAggregate,
    uuid=st.sampled_from(["a1", "a2", "a3"]),
    metadata=st.sampled_from(
        [
            {},
            {"filter_tenant_id": "p1"},
            {"filter_tenant_id": " p1, p2 ,"},
            {"filter_tenant_id1": "p3", "other": "p9"},
            {"filter_tenant_id": ""},
        ]
    ),
)
words = st.frozensets(st.sampled_from(["x", "y", "z"]), max_size=2)
full_hosts = st.builds(
    HostRow,
    name=st.sampled_from(HOSTS),
    host_id=st.integers(1, 99),
    zone=st.sampled_from(["az-1", "az-1", "az-2", ""]),
    is_ready=st.sampled_from([True, True, False]),
    hypervisor_type=st.sampled_from(["kvm", "ch", "CH", "", "vmware"]),
    traits=st.frozensets(st.sampled_from(TRAITS), max_size=3),
    custom_traits=st.frozensets(st.sampled_from(TRAITS), max_size=2),
    allowed_projects=st.sampled_from([(), (), ("p1",), ("p1", "p2")]),
    effective=st.builds(gib, st.integers(0, 24), st.integers(0, 24)),
    allocated=small_vectors,
    cpu_arch=st.sampled_from(["x86_64", "x86_64", "aarch64", ""]),
    building_block=st.sampled_from(["bb1", "bb2"]),
    aggregates=st.lists(aggregates, max_size=2).map(tuple),
    features=words,
    cpu_modes=words,
    devices=words,
    maintenance=st.sampled_from(["", "auto", "ha", "manual", "termination", "odd"]),
    instances=st.frozensets(st.sampled_from(VMS), max_size=3).map(lambda vms: tuple(sorted(vms))),
)


def _reservation(
    kind: str, target: str, observed: str, vms: frozenset[str], full: ResourceVector, **rest: object
) -> ReservationRow:
    row = ReservationRow(
        reservation_id=0,
        kind=kind,
        target_host=target,
        observed_host="" if kind == "in_flight" else observed,
        vm_uuids=tuple(sorted(vms))[:1] if kind == "in_flight" else tuple(sorted(vms)),
        full=full,
        blocked=full,
    )
    if kind == "committed":
        row = replace(row, **rest)  # type: ignore[arg-type]  # keyword pass-through
        row = replace(row, expected_vms=tuple((vm, row.expected_only) for vm in sorted(vms)[:1]))
    if kind == "in_flight":
        row = replace(row, project_id=str(rest["project_id"]))
    return replace(
        row,
        is_ready=bool(rest["is_ready"]),
        resource_group=str(rest["resource_group"]),
        zone=str(rest["zone"]),
        placement_id=row.vm_uuids[0] if kind == "in_flight" and row.vm_uuids else "",
    )


hosts_or_none = st.sampled_from(["", *HOSTS, "host-gone"])
reservations = st.builds(
    _reservation,
    st.sampled_from(["committed", "committed", "failover", "in_flight"]),
    hosts_or_none,
    hosts_or_none,
    st.frozensets(st.sampled_from(VMS), max_size=3),
    st.sampled_from([gib(2, 1), gib(4, 2), gib(8, 8)]),
    is_ready=st.sampled_from([True, True, True, False]),
    project_id=st.sampled_from(["p1", "p2"]),
    resource_group=st.sampled_from(["g1", "g1", "g2", ""]),
    zone=st.sampled_from(["az-1", "az-2"]),
    blocked=st.sampled_from([ZERO, gib(1, 1), gib(4, 2), gib(9, 9)]),
    expected_only=st.sampled_from([ZERO, gib(1, 0), gib(3, 2)]),
    expected_memory_bytes=st.sampled_from([0, GIB, 4 * GIB]),
)
full_worlds = st.builds(
    lambda hosts, slots: World(
        hosts=tuple(hosts),
        reservations=tuple(
            replace(slot, reservation_id=number) for number, slot in enumerate(_distinct(slots))
        ),
    ),
    st.lists(full_hosts, max_size=6, unique_by=lambda row: row.name),
    st.lists(reservations, max_size=8),
)


def _distinct(slots: Sequence[ReservationRow]) -> Iterable[ReservationRow]:
    """Leave out in-flight blocks that a host has already for the same VM: one placement each."""
    seen = set()
    for slot in slots:
        if slot.kind == "in_flight":
            if (slot.placement_id, slot.target_host) in seen:
                continue
            seen.add((slot.placement_id, slot.target_host))
        yield slot


groups = st.none() | st.builds(
    InstanceGroup,
    policy=st.sampled_from(
        ["affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity", "Affinity"]
    ),
    hosts=st.frozensets(st.sampled_from((*HOSTS, "host-gone")), max_size=3),
    members=st.frozensets(st.sampled_from(VMS), max_size=4),
    max_per_host=st.integers(1, 3),
)
destinations = st.none() | st.builds(
    RequestedDestination,
    host=st.sampled_from(["", "", "host-1", "host-x"]),
    aggregates=st.sampled_from([(), ("a1",), ("a1,a2",), ("a1", "a2"), ("a1, a3", "a9,a2")]),
)
extra_specs = st.dictionaries(
    st.sampled_from(
        [
            "quota:hw_version",
            "trait:A",
            "trait:B",
            "capabilities:hypervisor_type",
            "capabilities:cpu_arch",
            "accel:device_profile",
            "hw:virtio_packed_ring",
        ]
    ),
    st.sampled_from(
        ["g1", "g1", "required", "forbidden", "QEMU", "ch", "x86_64", "<or> ch <or> kvm"]
    ),
    max_size=3,
)
commitment_facts = st.builds(
    CommitmentFact,
    project_id=st.sampled_from(["p1", "p1", "p2"]),
    zone=st.sampled_from(["az-1", "az-1", "az-2"]),
    group=st.sampled_from(["g1", "g1", "g2"]),
    resource_type=st.sampled_from(["memory", "memory", "cores"]),
    state=st.sampled_from(["confirmed", "guaranteed", "pending"]),
    amount_bytes=st.sampled_from([GIB // 2, 2 * GIB, 3 * GIB + 1]),
    used_bytes=st.sampled_from([0, 0, 1, 2 * GIB, 5 * GIB]),
    is_current=st.sampled_from([True, True, False]),
)
quota_names = st.sampled_from([f"hw_version_g1_{kind}" for kind in ("ram", "cores", "instances")])
quota_facts = st.none() | st.builds(
    QuotaFacts,
    commitments=st.lists(commitment_facts, max_size=3).map(tuple),
    quota=st.none() | st.dictionaries(quota_names, st.integers(0, 8)),
    payg_usage=st.dictionaries(quota_names, st.integers(0, 4)),
    lookup_error=st.sampled_from(["", "", "", "no answer"]),
)
full_requests = st.builds(
    PlacementRequest,
    request_key=st.sampled_from([*VMS, "new"]),
    memory_bytes=st.sampled_from([GIB, 2 * GIB, 3 * GIB + 7]),
    vcpus=st.integers(1, 3),
    zone=st.sampled_from(["", "", "az-1", "az-9"]),
    project_id=st.sampled_from(["", "p1", "p1", "p2"]),
    ignored_kinds=st.frozensets(
        st.sampled_from(["committed", "failover", "in_flight"]), max_size=1
    ),
    assume_empty_hosts=st.sampled_from([False, False, True]),
    lock_reservations=st.sampled_from([False, False, True]),
    intent=st.none() | st.sampled_from(list(Intent)),
    num_instances=st.sampled_from([0, 1, 1, 2]),
    extra_specs=extra_specs,
    image_properties=st.sampled_from(
        [None, {}, {"img_hv_type": "kvm"}, {"hypervisor_type": "VMware"}, {"img_hv_type": 3}]
    ),
    domain_name=st.sampled_from([None, "iaas-1", "iaas-2", "other"]),
    flavor_group=st.sampled_from(["", "", "g1"]),
    quota=quota_facts,
    source_host=st.sampled_from(["", *HOSTS[:2]]),
    resource_group=st.sampled_from(["", "g1", "g2"]),
    instance_group=groups,
    requested_destination=destinations,
    hosts=st.none() | st.lists(st.sampled_from((*HOSTS, "host-x")), max_size=7).map(tuple),
    weights=st.none()
    | st.dictionaries(st.sampled_from(HOSTS), st.sampled_from([0.0, 0.5, -1.0, 55.0])),
)

FAILOVER = {Intent.RESERVE_FOR_FAILOVER, Intent.REUSE_FAILOVER_RESERVATION}
NO_VM = {*FAILOVER, Intent.RESERVE_FOR_COMMITTED_RESOURCE, Intent.CAPACITY_PROBE}


def block_for(reservation: ReservationRow, request: PlacementRequest) -> ResourceVector:
    """What one reservation blocks on each of its hosts before slots are released (7.11 step B)."""
    kind, ready = reservation.kind, reservation.is_ready
    if kind in request.ignored_kinds:
        return ZERO
    if kind == "in_flight":
        return ZERO if request.request_key in reservation.vm_uuids else reservation.blocked
    if kind == "failover":
        own = request.intent is Intent.EVACUATE and request.request_key in reservation.vm_uuids
        reused = request.intent is Intent.REUSE_FAILOVER_RESERVATION
        return ZERO if ready and (own or reused) else reservation.blocked
    return reservation.full if request.assume_empty_hosts else reservation.blocked


def is_of_project(reservation: ReservationRow, request: PlacementRequest) -> bool:
    group = request.flavor_group or request.extra_specs.get("quota:hw_version", "")
    return (
        bool(group)
        and bool(request.project_id)
        and (reservation.project_id, reservation.resource_group) == (request.project_id, group)
        and reservation.kind not in request.ignored_kinds
    )


def opened(reservation: ReservationRow, request: PlacementRequest) -> ResourceVector:
    """What a committed slot could release: all but the room of others that are expected in it."""
    is_open = (
        reservation.kind == "committed"
        and reservation.is_ready
        and is_of_project(reservation, request)
        and not request.lock_reservations
        and request.intent is not Intent.RESERVE_FOR_COMMITTED_RESOURCE
    )
    if not is_open:
        return ZERO
    kept = reservation.expected_only
    for vm_uuid, size in reservation.expected_vms:
        if vm_uuid == request.request_key:
            kept -= size
    amount = reservation.full if request.assume_empty_hosts else reservation.blocked
    return (amount - kept).clamped()


def given_by_slots(
    here: Sequence[ReservationRow], request: PlacementRequest, asked: ResourceVector
) -> ResourceVector:
    """What the slots on a host give to a VM beside others of its project on their way there."""
    flying = [
        row.blocked
        for row in here
        if row.kind == "in_flight"
        and is_of_project(row, request)
        and request.request_key not in row.vm_uuids
    ]
    rooms = [opened(row, request) for row in here]
    parts = {}
    for part in ("memory_bytes", "vcpus"):
        slots = sum(getattr(room, part) for room in rooms)
        given = sum(min(getattr(room, part), getattr(asked, part)) for room in rooms)
        shared = min(slots, sum(getattr(block, part) for block in flying))
        parts[part] = shared + min(given, slots - shared)
    return ResourceVector(**parts)


def filled_by_others(
    world: World, here: Sequence[ReservationRow], host: str, request: PlacementRequest
) -> ResourceVector:
    """What failover slots on a host and other VMs in flight into them block both."""
    if request.intent is not Intent.EVACUATE or request.ignored_kinds & {"failover", "in_flight"}:
        return ZERO
    flying: dict[int, ResourceVector] = {}
    for row in here:
        slots = [
            slot
            for slot in world.reservations
            if row.kind == "in_flight"
            and slot.kind == "failover"
            and host in slot.hosts()
            and set(row.vm_uuids) & set(slot.vm_uuids)
        ]
        if slots and request.request_key not in slots[0].vm_uuids:
            key = slots[0].reservation_id
            flying[key] = flying.get(key, ZERO) + row.blocked
    blocked = {slot.reservation_id: slot.blocked for slot in here}
    return ResourceVector(
        memory_bytes=sum(min(f.memory_bytes, blocked[k].memory_bytes) for k, f in flying.items()),
        vcpus=sum(min(f.vcpus, blocked[k].vcpus) for k, f in flying.items()),
    )


def asked_of(request: PlacementRequest) -> ResourceVector:
    count = request.num_instances or 1
    return ResourceVector(memory_bytes=count * request.memory_bytes, vcpus=count * request.vcpus)


def free_on(world: World, host: HostRow, request: PlacementRequest) -> ResourceVector:
    free = host.effective
    if not request.assume_empty_hosts:
        free -= host.allocated
    here = [row for row in world.reservations if host.name in row.hosts()]
    for reservation in here:
        free -= block_for(reservation, request)
    free += filled_by_others(world, here, host.name, request)
    return free + given_by_slots(here, request, asked_of(request))


def image_kind(request: PlacementRequest) -> str | None:
    properties = request.image_properties or {}
    word = properties.get("img_hv_type", properties.get("hypervisor_type"))
    return word.lower() if isinstance(word, str) else None


def capability_fits(host: HostRow, key: str, text: str) -> bool:
    same = {"kvm": "qemu"}
    kind = same.get(host.hypervisor_type.lower(), host.hypervisor_type.lower())
    if key == "capabilities:cpu_arch":
        have, wanted = host.cpu_arch, text
    else:
        have, wanted = kind, text.lower()
        wanted = " ".join(same.get(word, word) for word in wanted.split())
    options = wanted.split("<or>") if wanted.startswith("<or>") else None
    if options is not None:
        return have in [option.strip() for option in options if option.strip()]
    return have == wanted


def slow_verdict(step: str, world: World, host: HostRow, request: PlacementRequest) -> bool:
    """Whether a filter keeps a known host, one rule after the other as in the specification."""
    return SLOW_RULES[step](world, host, request)


def _capacity(world: World, host: HostRow, request: PlacementRequest) -> bool:
    return asked_of(request).fits_into(free_on(world, host, request))


def _capabilities(_world: World, host: HostRow, request: PlacementRequest) -> bool:
    wanted = {k: v for k, v in request.extra_specs.items() if k.startswith("capabilities:")}
    if not wanted:
        return True
    has_any = host.hypervisor_type.lower() in {"kvm", "qemu", "ch"}
    return has_any and all(capability_fits(host, key, text) for key, text in wanted.items())


def _traits(_world: World, host: HostRow, request: PlacementRequest) -> bool:
    for key, word in request.extra_specs.items():
        if key.startswith("trait:") and word in {"required", "forbidden"}:
            has = key.removeprefix("trait:") in {*host.traits, *host.custom_traits}
            if has != (word == "required"):
                return False
    return True


def _has(host: HostRow, trait: str) -> bool:
    return trait in host.traits or trait in host.custom_traits


def _customer(_world: World, host: HostRow, request: PlacementRequest) -> bool:
    if request.intent is Intent.CAPACITY_PROBE or request.domain_name != "iaas-1":
        return True  # iaas-2 is ignored
    return _has(host, EXTERNAL)


def _accelerators(_world: World, host: HostRow, request: PlacementRequest) -> bool:
    return "accel:device_profile" not in request.extra_specs or _has(host, "COMPUTE_ACCELERATORS")


def _virtqueue(_world: World, host: HostRow, request: PlacementRequest) -> bool:
    wants = "hw:virtio_packed_ring" in request.extra_specs
    return not wants or _has(host, "COMPUTE_NET_VIRTIO_PACKED")


def _group_counts(request: PlacementRequest) -> bool:
    return request.instance_group is not None and request.intent not in {
        Intent.RESERVE_FOR_COMMITTED_RESOURCE,
        Intent.CAPACITY_PROBE,
    }


def _affinity(_world: World, host: HostRow, request: PlacementRequest) -> bool:
    group = request.instance_group
    if group is None or not _group_counts(request) or group.policy != "affinity":
        return True
    return not group.hosts or host.name in group.hosts


def _anti_affinity(_world: World, host: HostRow, request: PlacementRequest) -> bool:
    group = request.instance_group
    if group is None or not _group_counts(request) or group.policy != "anti-affinity":
        return True
    if not group.members or request.request_key in host.instances:
        return True
    return len(group.members.intersection(host.instances)) < group.max_per_host


def _projects(_world: World, host: HostRow, request: PlacementRequest) -> bool:
    if not request.project_id or request.intent is Intent.CAPACITY_PROBE:
        return True
    return not host.allowed_projects or request.project_id in host.allowed_projects


def _aggregates(_world: World, host: HostRow, request: PlacementRequest) -> bool:
    if request.intent is Intent.CAPACITY_PROBE:
        return True
    tenants = []
    for aggregate in host.aggregates:
        for key, text in aggregate.metadata.items():
            if key.startswith("filter_tenant_id"):
                tenants += [part.strip() for part in text.split(",") if part.strip()]
    return not tenants or request.project_id in tenants


def _migratable(world: World, host: HostRow, request: PlacementRequest) -> bool:
    if request.intent is not Intent.LIVE_MIGRATION or not request.source_host:
        return True
    source = next(one for one in world.hosts if one.name == request.source_host)
    return (
        source.cpu_arch == host.cpu_arch
        and set(source.cpu_modes) <= set(host.cpu_modes)
        and set(source.features) <= set(host.features)
        and set(source.devices) <= set(host.devices)
    )


def _destination(_world: World, host: HostRow, request: PlacementRequest) -> bool:
    wanted = request.requested_destination
    if wanted is None or request.intent in NO_VM:
        return True
    uuids = {aggregate.uuid for aggregate in host.aggregates}
    for choice in wanted.aggregates:
        if not uuids.intersection(part.strip() for part in choice.split(",")):
            return False
    return not wanted.host or wanted.host == host.name


def _image(_world: World, _host: HostRow, request: PlacementRequest) -> bool:
    return request.intent in NO_VM or image_kind(request) in {None, "kvm"}


def gib_up(memory_bytes: int) -> int:
    return math.ceil(memory_bytes / GIB)


def _quota(_world: World, _host: HostRow, request: PlacementRequest) -> bool:
    """All hosts or none (7.16), with the room of all commitments pooled (15.19)."""
    group = request.flavor_group or request.extra_specs.get("quota:hw_version", "")
    facts = request.quota
    if request.intent in {*NO_VM, Intent.EVACUATE, Intent.LIVE_MIGRATION}:
        return True
    if facts is None or facts.lookup_error or not (request.project_id and request.zone and group):
        return True
    mine = [
        fact
        for fact in facts.commitments
        if (fact.project_id, fact.zone, fact.group) == (request.project_id, request.zone, group)
        and fact.resource_type == "memory"
        and fact.state in {"confirmed", "guaranteed"}
        and fact.is_current
    ]
    asked = asked_of(request)
    wanted = {
        "ram": gib_up(asked.memory_bytes),
        "cores": asked.vcpus,
        "instances": request.num_instances or 1,
    }
    rooms = [gib_up(fact.amount_bytes) - gib_up(fact.used_bytes) for fact in mine]
    if wanted["ram"] <= sum(room for room in rooms if room > 0) or facts.quota is None:
        return True
    for kind, amount in wanted.items():
        name = f"hw_version_{group}_{kind}"
        if name in facts.quota:
            promised = sum(gib_up(fact.amount_bytes) for fact in mine) if kind == "ram" else 0
            if facts.quota[name] - promised - facts.payg_usage.get(name, 0) < amount:
                return False
    return True


SLOW_RULES: dict[str, Callable[[World, HostRow, PlacementRequest], bool]] = {
    "filter_status_conditions": lambda _world, host, _request: host.is_ready,
    "filter_correct_az": lambda _world, host, request: request.zone in {"", host.zone},
    "filter_host_instructions": lambda _world, host, request: (
        host.name not in (request.ignore_hosts or ())
        and (request.force_hosts is None or host.name in request.force_hosts)
    ),
    "filter_image_properties": _image,
    "filter_capabilities": _capabilities,
    "filter_has_requested_traits": _traits,
    "filter_external_customer": _customer,
    "filter_has_accelerators": _accelerators,
    "filter_instance_group_affinity": _affinity,
    "filter_instance_group_anti_affinity": _anti_affinity,
    "filter_has_enough_capacity": _capacity,
    "filter_allowed_projects": _projects,
    "filter_aggregate_metadata": _aggregates,
    "filter_live_migratable": _migratable,
    "filter_requested_destination": _destination,
    "filter_quota_enforcement": _quota,  # enforced; a shadow keeps every host
    "filter_exclude_hosts": lambda _world, host, _request: host.name not in {"host-1", "host-2"},
    "filter_packed_virtqueue": _virtqueue,
    "filter_maintenance": lambda _world, host, _request: host.maintenance in {"", "auto", "ha"},
}
