"""From commitments as Limes lists them to ours, and back (spec commitments, 16.3; liquid, 15.3)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from capacity.groups.units import (
    Unit,
    UnitError,
    bytes_to_declared_units,
    parse_unit,
    ram_unit_text,
)
from commitments.domain.names import (
    InvalidResourceName,
    flavor_group_and_type_from_resource,
    resource_name_cores,
    resource_name_ram,
)
from commitments.domain.state import (
    CommitmentFormatError,
    CommitmentState,
    LimesCommitment,
    from_commitment,
)
from commitments.domain.statuses import CommitmentStatus, ResourceType
from scheduling.resources import MIB

COMPUTE: Final = "compute"
PRECISION: Final = timedelta(seconds=1)
"""Limes' v1 API cuts times to whole seconds, after its database rounded them."""
KNOWN_STATUSES: Final = frozenset(status.value for status in CommitmentStatus)
SKIP_REASON_NON_COMPUTE: Final = "non_compute"
SKIP_REASON_UNKNOWN_STATUS: Final = "unknown_status"
SKIP_REASON_INVALID_RESOURCE: Final = "invalid_resource_name"
SKIP_REASON_UNKNOWN_FLAVOR_GROUP: Final = "unknown_flavor_group"
SKIP_REASON_DECIDED_BY_LIMES: Final = "decided_by_limes"
SKIP_REASON_UNIT_MISMATCH: Final = "unit_mismatch"
SKIP_REASON_EMPTY_UUID: Final = "empty_uuid"
SKIP_REASON_INVALID_COMMITMENT: Final = "invalid_commitment"

Json = Any  # the record as Limes returned it, kept whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LimesRecord:
    """A commitment in a list of Limes, with what decides about taking it in.

    Attributes:
        limes_id: Number in Limes, if known.
        service_type: Limes' name of the service.
        unit: Unit of the amount as Limes gave it; empty if absent.
        commitment: The rest, ready to convert.
    """

    limes_id: int | None
    service_type: str
    unit: str
    commitment: LimesCommitment


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A commitment that is understood.

    Attributes:
        limes_id: Number in Limes, if known.
        state: What it asks for.
        confirm_by: Unix seconds it is wanted from, if given.
        confirmed_at: Unix seconds it was confirmed at, if it was.
    """

    limes_id: int | None
    state: CommitmentState
    confirm_by: int | None = None
    confirmed_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A commitment that is not understood now. Its row and slots, if any, stay as they are.

    Attributes:
        uuid: Its uuid; may be empty.
        reason: Stable word (``SKIP_REASON_*``).
        detail: The facts, for a person.
    """

    uuid: str
    reason: str
    detail: str


class Understanding(Protocol):
    """Filters and converts one commitment (:func:`take_in` with all but its record)."""

    def __call__(self, record: LimesRecord) -> Converted | Skipped:
        """Return it converted, or why not."""


def take_in(
    record: LimesRecord,
    ram_unit_mib_by_group: Mapping[str, int],
    *,
    service_type: str = COMPUTE,
    decided_by_limes: Collection[str] = (),
) -> Converted | Skipped:
    """Filter and convert one commitment; the first check that fails gives the reason.

    Args:
        record: What Limes returned.
        ram_unit_mib_by_group: Declared RAM unit in MiB of every known flavor group.
        service_type: Name under which Limes knows our service.
        decided_by_limes: Names of resources whose commitments Limes decides without asking us.

    Source: spec commitments, 16.3 with its improvements.
    """
    name = record.commitment.resource_name
    found: int | _Refusal
    if record.service_type == service_type and name in decided_by_limes:
        found = _Refusal(SKIP_REASON_DECIDED_BY_LIMES, f"handlesCommitments of {name} is false")
    else:
        found = _checked(record, ram_unit_mib_by_group, service_type)
    if isinstance(found, _Refusal):
        return Skipped(uuid=record.commitment.uuid, reason=found.reason, detail=found.detail)
    return _converted(record, found)


def is_ours(service_type: str, resource_name: str, *, configured: str = COMPUTE) -> bool:
    """Return whether a listed commitment is meant for us, understood or not.

    Args:
        service_type: Limes' name of its service.
        resource_name: Limes' name of its resource.
        configured: Name under which Limes knows our service, as far as we know.
    """
    if service_type == configured:
        return True
    try:
        flavor_group_and_type_from_resource(resource_name)
    except InvalidResourceName:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: str
    detail: str


def _checked(
    record: LimesRecord, ram_unit_mib_by_group: Mapping[str, int], service_type: str
) -> int | _Refusal:
    """Return the RAM unit of the commitment's group in MiB, or the first check that fails."""
    commitment = record.commitment
    if record.service_type != service_type:
        return _Refusal(SKIP_REASON_NON_COMPUTE, f"service type {record.service_type!r}")
    if commitment.status not in KNOWN_STATUSES:
        return _Refusal(SKIP_REASON_UNKNOWN_STATUS, f"status {commitment.status!r}")
    try:
        group, resource_type = flavor_group_and_type_from_resource(commitment.resource_name)
    except InvalidResourceName as error:
        return _Refusal(SKIP_REASON_INVALID_RESOURCE, str(error))
    if group not in ram_unit_mib_by_group:
        return _Refusal(SKIP_REASON_UNKNOWN_FLAVOR_GROUP, f"no flavor group {group!r}")
    ram_unit_mib = ram_unit_mib_by_group[group]
    problem = _unit_problem(record.unit, resource_type, ram_unit_mib)
    if problem is not None:
        return _Refusal(SKIP_REASON_UNIT_MISMATCH, problem)
    where = f"{commitment.resource_name} in {commitment.zone}"
    return ram_unit_mib if commitment.uuid else _Refusal(SKIP_REASON_EMPTY_UUID, where)


def _converted(record: LimesRecord, ram_unit_mib: int) -> Converted | Skipped:
    commitment = record.commitment
    problem = "" if commitment.zone and commitment.project_id else "zone or project is empty"
    if not problem:
        try:
            state = from_commitment(commitment, ram_unit_mib)
        except CommitmentFormatError as error:
            problem = str(error)
    if problem:
        return Skipped(uuid=commitment.uuid, reason=SKIP_REASON_INVALID_COMMITMENT, detail=problem)
    return Converted(
        limes_id=record.limes_id,
        state=state,
        confirm_by=commitment.confirm_by or None,
        confirmed_at=commitment.confirmed_at or None,
    )


def _unit_problem(unit: str, resource_type: ResourceType, ram_unit_mib: int) -> str | None:
    if unit == "":
        return None
    try:
        given: Unit | None = parse_unit(unit)
    except UnitError:
        given = None
    if resource_type is ResourceType.CORES:
        fits = given is not None and given.is_counted and given.factor == 1
        return None if fits else f"unit {unit!r}, expected none"
    fits = given is not None and not given.is_counted and given.factor == ram_unit_mib * MIB
    return None if fits else f"unit {unit!r}, expected {ram_unit_text(ram_unit_mib)!r}"


def same_second(stored: datetime | None, listed: datetime | None) -> bool:
    """Return whether a stored time is what Limes lists, as far as Limes tells."""
    if stored is None or listed is None:
        return stored is listed
    return abs(stored - listed) < PRECISION


def is_terminal(state: CommitmentState, now: datetime) -> bool:
    """Return whether a commitment has ended: superseded, expired, or past its end.

    Source: spec commitments, 16.4.
    """
    has_final_status = state.status is not None and state.status.is_final
    return has_final_status or (state.end_time is not None and state.end_time <= now)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCommitment:
    """A stored commitment as far as Limes would show it.

    Attributes:
        state: What it asks for.
        created_at: When its row was made.
        confirm_by: When it is wanted from.
        confirmed_at: When it was confirmed.
        limes_id: Number in Limes, if known.
        record: What Limes said at the last sync, if it ever did.
    """

    state: CommitmentState
    created_at: datetime
    confirm_by: datetime | None = None
    confirmed_at: datetime | None = None
    limes_id: int | None = None
    record: Mapping[str, Json] | None = None


def limes_record_of(
    stored: StoredCommitment, as_recorded: Converted | None, ram_unit_mib: int
) -> dict[str, Json]:
    """Return a commitment as Limes would list it.

    What Limes said is returned unchanged while it still describes the commitment; else the fields
    that we know better are replaced.

    Args:
        as_recorded: Its record taken in again, None if there is none or it is not understood.
        ram_unit_mib: Declared RAM unit of its group in MiB.
    """
    record = dict(stored.record or {})
    if as_recorded is not None and as_recorded.state == stored.state:
        return record
    state = stored.state
    is_memory = state.resource_type is ResourceType.MEMORY
    group = state.flavor_group_name
    start = state.start_time or stored.created_at
    record |= {
        "uuid": state.commitment_uuid,
        "service_type": record.get("service_type", COMPUTE),
        "resource_name": resource_name_ram(group) if is_memory else resource_name_cores(group),
        "availability_zone": state.zone,
        "amount": (
            bytes_to_declared_units(state.requested_amount, ram_unit_mib)
            if is_memory
            else state.requested_amount
        ),
        "unit": ram_unit_text(ram_unit_mib) if is_memory else "",
        "created_at": record.get("created_at", _seconds(start)),
        "expires_at": _seconds(state.end_time) if state.end_time else 0,
        "status": state.status.value if state.status else "",
        "project_id": state.project_id,
        "domain_id": state.domain_id,
    }
    if stored.limes_id is not None:
        record["id"] = stored.limes_id
    for key, moment in (("confirm_by", stored.confirm_by), ("confirmed_at", stored.confirmed_at)):
        record.pop(key, None)
        if moment is not None:
            record[key] = _seconds(moment)
    if state.end_time and "duration" not in record:
        record["duration"] = f"{max(1, _seconds(state.end_time) - _seconds(start))} seconds"
    return record


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())
