"""What a change request wants of each commitment, checked (spec liquid, 11.2, 11.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.groups.group_settings import GroupSettings, settings_for_group
from capacity.groups.reading import load_group_definitions, load_group_settings
from commitments.domain.changeset import ChangeEntry, ChangeRequest, detect_moves
from commitments.domain.confirmation import requires_confirmation
from commitments.domain.names import (
    InvalidResourceName,
    flavor_group_and_type_from_resource,
    is_commitment_uuid,
)
from commitments.domain.state import CommitmentFormatError, from_change_commitment_target_state
from commitments.domain.statuses import LIVE_STATUSES, UNFINISHED_STATUSES, ResourceType
from commitments.models import Commitment
from commitments.services.commitment_rows import WantedCommitment
from core.stored_text import shortened
from journal.errors import HeadroomError
from scheduling.resources import MIB


class StructuralProblem(HeadroomError):  # noqa: N818 - the specification's word
    """A request that no capacity could make acceptable (spec liquid, 11.2)."""

    code = "structural_problem"


def field_of(entry: ChangeEntry, name: str) -> str:
    """Return the path of a field of a change in its request."""
    resource = _resource_field(entry.project_id, entry.resource_name)
    return f"{resource}.commitments[{entry.index}].{name}"


def _resource_field(project_id: str, resource_name: str) -> str:
    return f"byProject.{shortened(project_id)}.byResource.{shortened(resource_name)}"


def resolve_changes(
    request: ChangeRequest, *, now: datetime, request_id: str
) -> tuple[WantedCommitment, ...]:
    """Return what a request wants of each commitment, structurally checked, in processing order.

    The second half of a move or conversion says where the commitment goes; the first is dropped.

    Raises:
        StructuralProblem: the first failure in processing order (spec liquid, 11.2).
    """
    moves = detect_moves(request).moves
    departed = {_place_of(move.departure) for move in moves}
    moved = {move.arrival.change.uuid for move in moves}
    may_reject = requires_confirmation(request)
    groups, configured = load_group_definitions(include_retired=True), load_group_settings()
    wanted = []
    for project_id, resource_name, entries in request.places():
        parsed_resource(project_id, resource_name)
        for entry in entries:
            item = _wanted(entry, request.zone, groups, configured, now)
            if entry.change.uuid not in moved:
                _check_end(entry, now)
            if _place_of(entry) not in departed:
                wanted.append(replace(item, allow_rejection=may_reject, request_id=request_id))
    return tuple(wanted)


def _place_of(entry: ChangeEntry) -> tuple[str, str, str]:
    return entry.project_id, entry.resource_name, entry.change.uuid


def check_names(request: ChangeRequest) -> None:
    """Check names, groups and uuids of a dry run, whatever its resources do (decisions).

    Raises:
        StructuralProblem: the first failure in processing order.
    """
    groups = load_group_definitions(include_retired=True)
    for project_id, resource_name, entries in request.places():
        group, _ = parsed_resource(project_id, resource_name)
        if group not in groups:
            raise StructuralProblem(
                f"flavor group not found: {group}", field=_resource_field(project_id, resource_name)
            )
        for entry in entries:
            if not is_commitment_uuid(entry.change.uuid):
                raise StructuralProblem(
                    f"commitment {entry.change.uuid}: unexpected commitment format",
                    field=field_of(entry, "uuid"),
                )


def _check_end(entry: ChangeEntry, now: datetime) -> None:
    """Check that a commitment that is made ends, and later than now.

    One that ends already would be accepted, hold nothing and expire at once; one without an end
    would hold for ever.

    Raises:
        StructuralProblem: it does not.
    """
    change = entry.change
    if not change.is_arrival or change.new_status is None or change.new_status.is_final:
        return
    if change.expires_at is None:
        problem = "expiresAt is missing"
    elif change.expires_at <= now:
        times = (f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in (change.expires_at, now))
        problem = "expiresAt {} has passed: it is {}".format(*times)
    else:
        return
    raise StructuralProblem(
        f"commitment {change.uuid}: {problem}", field=field_of(entry, "expiresAt")
    )


def check_retired_groups(
    wanted: Sequence[WantedCommitment], rows: Mapping[str, Commitment]
) -> None:
    """Check that a batch makes the commitments of no retired group grow.

    Neither what is promised or asked for now, nor that with what is planned: splits, transfers and
    deletes do not.

    Args:
        wanted: What the batch wants.
        rows: Its stored commitments by uuid, of one moment.

    Raises:
        StructuralProblem: it makes some grow.

    Source: decisions (retired flavor groups).
    """
    active = load_group_definitions()
    before = [
        (row.flavor_group_name, row.resource_type, row.state, row.requested_amount)
        for row in (rows.get(item.commitment_uuid) for item in wanted)
        if row is not None
    ]
    after = [
        (one.flavor_group_name, one.resource_type.value, one.status.value, one.requested_amount)
        for one in (item.state for item in wanted)
        if one is not None and one.status is not None
    ]
    for statuses in (LIVE_STATUSES, UNFINISHED_STATUSES):
        sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for side, parts in enumerate((before, after)):
            for group, resource_type, status, amount in parts:
                if group not in active and status in statuses:
                    sums[group, resource_type][side] += amount
        for (group, resource_type), (amount_before, amount_after) in sorted(sums.items()):
            if amount_after > amount_before:
                message = _growth_message(group, resource_type, amount_before, amount_after)
                raise StructuralProblem(message)


def _growth_message(group: str, resource_type: str, before: int, after: int) -> str:
    """Say that commitments of a retired group must not grow; amounts in bytes or cores."""
    amounts = f"{before} to {after} cores"
    if resource_type == ResourceType.MEMORY:
        amounts = f"{before // MIB} to {after // MIB} MiB"
    return (
        f"flavor group {group} is retired: its {resource_type} commitments can be split, "
        f"transferred and deleted, not grown from {amounts}"
    )


def _wanted(
    entry: ChangeEntry,
    zone: str,
    groups: Mapping[str, FlavorGroupDef],
    configured: Mapping[str, GroupSettings],
    now: datetime,
) -> WantedCommitment:
    group, resource_type = checked_resource(entry, groups, configured)
    change = entry.change
    try:
        state = from_change_commitment_target_state(
            change,
            project_id=entry.project_id,
            domain_id=entry.domain_id,
            flavor_group_name=group,
            resource_type=resource_type,
            zone=zone,
            ram_unit_mib=settings_for_group(configured, group).ram_unit_mib,
            now=now,
        )
    except CommitmentFormatError as error:
        message = f"commitment {change.uuid}: {error}"
        named = "amount" if is_commitment_uuid(change.uuid) else "uuid"
        raise StructuralProblem(message, field=field_of(entry, named)) from None
    return WantedCommitment(
        commitment_uuid=change.uuid,
        state=None if change.new_status is None else state,
        confirm_by=change.confirm_by,
        believed_state=change.old_status.value if change.old_status is not None else "",
    )


def checked_resource(
    entry: ChangeEntry,
    groups: Mapping[str, FlavorGroupDef],
    configured: Mapping[str, GroupSettings],
) -> tuple[str, ResourceType]:
    """Return flavor group and type of a resource that may carry this change.

    Deletes and moves to a final status work for vanished groups and switched-off resources too.

    Raises:
        StructuralProblem: the name is malformed, the group unknown, or commitments switched off.

    Source: spec liquid, 11.2 checks 1 to 3 with the relaxations.
    """
    group, resource_type = parsed_resource(entry.project_id, entry.resource_name)
    status = entry.change.new_status
    if status is None or status.is_final:
        return group, resource_type
    field = _resource_field(entry.project_id, entry.resource_name)
    if group not in groups:
        raise StructuralProblem(f"flavor group not found: {group}", field=field)
    group_settings = settings_for_group(configured, group)
    flags = group_settings.ram if resource_type is ResourceType.MEMORY else group_settings.cores
    if not flags.handles_commitments:
        raise StructuralProblem(
            f'flavor group "{group}" is not configured to handle {resource_type.value} commitments',
            field=field,
        )
    return group, resource_type


def parsed_resource(project_id: str, resource_name: str) -> tuple[str, ResourceType]:
    """Return flavor group and type of a resource name.

    Raises:
        StructuralProblem: the name is malformed (spec liquid, 11.2 check 1).
    """
    try:
        return flavor_group_and_type_from_resource(resource_name)
    except InvalidResourceName as error:
        message = f"project with unknown resource name {project_id}: {error}"
        field = _resource_field(project_id, resource_name)
        raise StructuralProblem(message, field=field) from None
