"""What a Hypervisor object says of its host (spec hosts, C.1 to C.3, C.7)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Final

from bridge.domain.owned_fields import Amounts, Json, Stated
from hosts.domain.readiness import Condition, Readiness, compute_ready, is_hindering
from hosts.domain.vm_list import ReportedVM
from hosts.models import OS_VERSION_MAX, Maintenance
from hosts.region.described import DescribedAggregate, DescribedHost
from hosts.region.described_cells import DescribedCell
from hosts.region.node import ID_MAX, INT64_MAX, Node, RegionFileError

ZONE_LABEL: Final = "topology.kubernetes.io/zone"
SECTION: Final = "hypervisors"
READY: Final = "Ready"
STATUSES: Final = ("True", "False", "Unknown")
#: As Nova names them; others are not told apart.
HYPERVISOR_TYPES: Final = {"ch": "CH", "kvm": "QEMU"}
CAPABILITIES: Final = {
    "cpu_modes": "supportedCpuModes",
    "devices": "supportedDevices",
    "features": "supportedFeatures",
}
SUFFIXES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{letter: Decimal(1000) ** power for power, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
}
LARGEST_RATIO: Final = Decimal("9999.9999")
#: Characters that are kept of a reason or message of a condition.
LONGEST_WHY: Final = 500


def object_node(body: object, number: int = 0) -> Node:
    """Return an object of the API as what its reading takes; anything else is no object."""
    fields = body if isinstance(body, dict) else {}
    return Node(fields, "kubernetes", SECTION, f"[{name_of(fields) or number}]")


def name_of(body: Mapping[str, object]) -> str:
    """Return the name of an object, empty if it says none."""
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    return name if isinstance(name, str) else ""


def read_hypervisor(node: Node, *, is_effective_ours: bool = False) -> DescribedHost:
    """Return what an object says of its host.

    Args:
        node: The object.
        is_effective_ours: Effective amounts are what we write there: those installed times
            overcommit, rounded down, whatever is stated.

    Effective amounts are taken as stated, installed ones where nothing is stated. What NUMA cells
    have is the host's where it does not say itself. Readiness is the
    stated condition; without one it follows from the others for hosts whose life cycle nobody
    manages, and is unknown for others, which keeps VMs off.

    Raises:
        RegionFileError: The object cannot be understood; names the field.
    """
    metadata = node.child("metadata")
    name = metadata.text("name")
    spec, status = node.child("spec", required=False), node.child("status", required=False)
    maintenance = _maintenance(spec)
    overcommit = spec.child("overcommit", required=False)
    capabilities = status.child("capabilities", required=False)
    domain = status.child("domainCapabilities", required=False)
    totals, effective = _installed(status), _amounts(status, "effectiveCapacity")
    taken = _amounts(status, "allocation", rounding=ROUND_CEILING)
    vcpus, memory_bytes = totals
    vcpus_ratio, memory_ratio = _overcommit(overcommit, "cpu"), _overcommit(overcommit, "memory")
    if is_effective_ours:
        effective = _scaled(vcpus, vcpus_ratio), _scaled(memory_bytes, memory_ratio)
    has_allocation = taken[0] is not None and taken[1] is not None
    openstack_id = status.text("hypervisorId", default="", max_length=ID_MAX)
    stated, is_managed = _stated(status), spec.boolean("lifecycleEnabled", default=True)
    ready = compute_ready(
        stated,
        maintenance=maintenance,
        lifecycle_managed=is_managed,
        has_ids=bool(openstack_id),
    )
    return DescribedHost(
        name=name,
        openstack_id=openstack_id,
        zone=metadata.child("labels", required=False).text(ZONE_LABEL, default=""),
        hypervisor_type=HYPERVISOR_TYPES.get(domain.text("hypervisorType", default=""), ""),
        cpu_arch=capabilities.text("cpuArch", default="", max_length=32),
        os_version=status.child("operatingSystem", required=False).text("version", default="")[
            :OS_VERSION_MAX
        ],
        maintenance=maintenance,
        high_availability=spec.boolean("highAvailability", default=True),
        total_vcpus=vcpus or 0,
        total_memory_bytes=memory_bytes or 0,
        effective_vcpus=_first(effective[0], vcpus),
        effective_memory_bytes=_first(effective[1], memory_bytes),
        vcpus_ratio=vcpus_ratio,
        memory_ratio=memory_ratio,
        traits=tuple(status.texts("traits", required=False)),
        custom_traits=tuple(spec.texts("customTraits", required=False)),
        aggregates=_aggregates(status),
        allowed_projects=tuple(spec.texts("allowedProjects", required=False, max_length=ID_MAX)),
        conditions=_conditions(stated, ready, lifecycle_managed=is_managed),
        condition_reasons=_condition_reasons(status, ready),
        domain_capabilities={
            name: domain.texts(key, required=False)
            for name, key in CAPABILITIES.items()
            if domain.has(key)
        },
        building_block=building_block(name),
        cells=_described_cells(status),
        reported_instances=_instances(status),
        reported_vcpus=taken[0] if has_allocation else None,
        reported_memory_bytes=taken[1] if has_allocation else None,
    )


def building_block(name: str) -> str:
    """Return the failure domain in the name of a host, its second part; empty if there is none.

    Source: spec hosts, C.7.
    """
    parts = name.split("-")
    return parts[1] if len(parts) > 1 else ""


def quantity(text: object) -> Decimal:
    """Return an amount as Kubernetes writes it, exactly: ``64``, ``512Gi``, ``1500m``, ``1e3``.

    Raises:
        ValueError: It is none.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        return _finite(Decimal(str(text)))
    if not isinstance(text, str) or not text or text != text.strip() or "_" in text:
        raise ValueError("is no quantity")
    suffix = next((text[-n:] for n in (2, 1) if text[-n:] in SUFFIXES), "")
    try:
        number = Decimal(text.removesuffix(suffix))
    except ArithmeticError:
        raise ValueError("is no quantity") from None
    return _finite(number) * SUFFIXES[suffix]


def _finite(number: Decimal) -> Decimal:
    if not number.is_finite() or abs(number) > INT64_MAX:
        raise ValueError("is no quantity")
    return number


def _amounts(
    status: Node, key: str, *, rounding: str = ROUND_FLOOR
) -> tuple[int | None, int | None]:
    """Return vCPUs and bytes; None for what is not stated."""
    found = status.child(key, required=False)

    def amount(name: str) -> int | None:
        if not found.has(name):
            return None
        try:
            whole = int(quantity(found.fields[name]).to_integral_value(rounding=rounding))
        except ValueError as problem:
            raise found.error(name, str(problem)) from None
        if not 0 <= whole <= INT64_MAX:
            raise found.error(name, f"{whole} is out of range")
        return whole

    return amount("cpu"), amount("memory")


def _scaled(amount: int | None, ratio: Decimal) -> int | None:
    return None if amount is None else min(int(amount * ratio), INT64_MAX)


def stated_fields(node: Node) -> Stated:
    """Return what an object that can be understood says in fields that are ours."""
    metadata = node.child("metadata")
    spec, status = node.child("spec", required=False), node.child("status", required=False)
    groups = spec.fields.get("groups")
    overcommit = spec.child("overcommit", required=False)
    vcpus, memory_bytes = _installed(status)
    ratios = _overcommit(overcommit, "cpu"), _overcommit(overcommit, "memory")
    cells, promised_cells, cell_allocations = _stated_cells(status, ratios)
    return Stated(
        uid=metadata.text("uid", default=""),
        version=metadata.text("resourceVersion", default=""),
        traits=frozenset(status.texts("traits", required=False)),
        overcommit={
            name: Decimal(str(ratio))
            if isinstance(ratio, int | float) and not isinstance(ratio, bool)
            else None
            for name, ratio in overcommit.fields.items()
        },
        promised=_whole(
            (
                _scaled(vcpus, ratios[0]),
                _scaled(memory_bytes, ratios[1]),
            )
        ),
        effective=_whole(_amounts(status, "effectiveCapacity")),
        allocation=_whole(_amounts(status, "allocation", rounding=ROUND_CEILING)),
        groups=groups if isinstance(groups, list) else (),
        cells=cells,
        promised_cells=promised_cells,
        cell_allocations=cell_allocations,
    )


def _installed(status: Node) -> tuple[int | None, int | None]:
    """Return vCPUs and bytes that a host has: as stated, else as its NUMA cells have them.

    Source: spec hosts, C.2.
    """
    if status.has("capacity") or not status.has("cells"):
        return _amounts(status, "capacity")
    found = [_amounts(cell, "capacity") for cell in _cells(status)]
    vcpus, memory_bytes = [cpu for cpu, _ in found], [memory for _, memory in found]
    return _sum(vcpus), _sum(memory_bytes)


def _sum(amounts: list[int | None]) -> int | None:
    known = [amount for amount in amounts if amount is not None]
    return min(sum(known), INT64_MAX) if amounts and len(known) == len(amounts) else None


def _cells(status: Node) -> list[Node]:
    cells = _objects(status, "cells")
    known: set[int] = set()
    for cell in cells:
        number = cell.integer("cellID")
        if number in known:
            raise cell.error("cellID", f"{number} is there twice")
        known.add(number)
    return cells


def _described_cells(status: Node) -> tuple[DescribedCell, ...]:
    """Return what is said of NUMA cells; nothing where one of them is odd."""
    found = []
    try:
        for cell in _cells(status):
            number = cell.integer("cellID")
            has = _amounts(cell, "capacity")
            may = _amounts(cell, "effectiveCapacity")
            taken = _amounts(cell, "allocation", rounding=ROUND_CEILING)
            told = zip(("cpu", "memory"), has, may, taken, strict=True)
            found += [
                DescribedCell(
                    cell=number,
                    resource=resource,
                    capacity=capacity,
                    effective=effective,
                    allocated=allocated or 0,
                )
                for resource, capacity, effective, allocated in told
                if capacity is not None
            ]
    except RegionFileError:
        return ()
    return tuple(found)


def _stated_cells(
    status: Node, ratios: tuple[Decimal, Decimal]
) -> tuple[list[Json], list[Json], list[Amounts | None]]:
    """Return NUMA cells as they are, with what each may promise, and what is allocated of each.

    None if one is odd.
    """
    try:
        cells = _cells(status)
        said = [_amounts(cell, "effectiveCapacity") for cell in cells]
        wanted = [tuple(map(_scaled, _amounts(cell, "capacity"), ratios)) for cell in cells]
        taken = [_whole(_amounts(cell, "allocation", rounding=ROUND_CEILING)) for cell in cells]
    except RegionFileError:
        return [], [], []
    stated = [dict(cell.fields) for cell in cells]
    promised = [
        cell if may in (has, (None, None)) else {**cell, "effectiveCapacity": _written(may)}
        for cell, has, may in zip(stated, said, wanted, strict=True)
    ]
    return stated, promised, taken


def _written(amounts: tuple[int | None, ...]) -> dict[str, str]:
    named = zip(("cpu", "memory"), amounts, strict=True)
    return {name: str(amount) for name, amount in named if amount is not None}


def _whole(amounts: tuple[int | None, int | None]) -> Amounts | None:
    vcpus, memory_bytes = amounts
    if vcpus is None or memory_bytes is None:
        return None
    return Amounts(vcpus=vcpus, memory_bytes=memory_bytes)


def _first(*stated: int | None) -> int:
    return next((amount for amount in stated if amount is not None), 0)


def _maintenance(spec: Node) -> str:
    mode = spec.text("maintenance", default="")
    if mode not in Maintenance.values:
        raise spec.error("maintenance", f"must be one of {', '.join(filter(None, Maintenance))}")
    return mode


def _overcommit(overcommit: Node, key: str) -> Decimal:
    ratio = overcommit.ratio(key)
    if ratio < 1:
        raise overcommit.error(key, f"{ratio} is below 1")
    return min(ratio, LARGEST_RATIO)


def _aggregates(status: Node) -> tuple[DescribedAggregate, ...]:
    found = {}
    for node in _objects(status, "aggregates"):
        uuid = node.text("uuid", max_length=ID_MAX)
        found[uuid] = DescribedAggregate(
            uuid=uuid, name=node.text("name"), metadata=node.text_map("metadata")
        )
    return tuple(found[uuid] for uuid in sorted(found))


def _stated(status: Node) -> dict[str, Condition]:
    stated: dict[str, Condition] = {}
    for node in _objects(status, "conditions"):
        told = node.text("status")
        if told not in STATUSES:
            raise node.error("status", f"must be one of {', '.join(STATUSES)}")
        message = node.fields.get("message")
        stated[node.text("type")] = Condition(
            status=told,
            reason=node.text("reason", default=""),
            message=message if isinstance(message, str) else "",
        )
    return stated


def _conditions(
    stated: Mapping[str, Condition], ready: Readiness, *, lifecycle_managed: bool
) -> dict[str, str]:
    """Return each condition's status, with that of Ready where nobody stated it."""
    statuses = {kind: condition.status for kind, condition in stated.items()}
    if READY not in statuses:
        statuses[READY] = (
            ("Unknown" if lifecycle_managed else "True") if ready.is_ready else "False"
        )
    return dict(sorted(statuses.items()))


def _condition_reasons(status: Node, ready: Readiness) -> dict[str, dict[str, str]]:
    """Return why conditions stand as they do, by type; those that say nothing are left out.

    Messages change with each look of whoever writes them: kept are those that say why the host
    takes nothing.
    """
    found: dict[str, dict[str, str]] = {}
    if not ready.is_ready:
        found[READY] = _why({"reason": ready.reason, "message": ready.message})
    for node in _objects(status, "conditions"):
        kind = node.text("type")
        keys = ("reason", "message") if is_hindering(kind, node.text("status")) else ("reason",)
        found[kind] = _why({key: node.fields.get(key) for key in keys})
    return {kind: found[kind] for kind in sorted(found) if found[kind]}


def _why(told: Mapping[str, object]) -> dict[str, str]:
    return {
        key: text.replace("\0", "")[:LONGEST_WHY]
        for key, text in told.items()
        if isinstance(text, str) and text
    }


def _instances(status: Node) -> tuple[ReportedVM, ...] | None:
    if not status.has("instances"):
        return None
    return tuple(
        ReportedVM(
            vm_uuid=node.text("id", max_length=ID_MAX),
            name=node.text("name", default=""),
            is_active=node.boolean("active", default=False),
        )
        for node in _objects(status, "instances")
    )


def _objects(parent: Node, key: str) -> list[Node]:
    found = parent.fields.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise parent.error(key, "must be a list")
    for number, entry in enumerate(found):
        if not isinstance(entry, dict):
            raise parent.error(f"{key}[{number}]", "must be an object")
    return [
        Node(entry, parent.file_name, f"{parent.path}.{key}", f"[{number}]")
        for number, entry in enumerate(found)
    ]
