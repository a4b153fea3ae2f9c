"""The common form of a commitment and its converters (spec commitments, 5; spec liquid, 11.4)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from capacity.groups.units import MAX_LEDGER_AMOUNT, UnitError, declared_units_to_bytes
from capacity.ledger.slot_request import slot_name_prefix
from commitments.domain.changeset import CommitmentChange
from commitments.domain.names import (
    flavor_group_and_type_from_resource,
    is_commitment_uuid,
)
from commitments.domain.statuses import CommitmentStatus, ResourceType


class CommitmentFormatError(ValueError):
    """A commitment that cannot be converted; the message is the reason told to the caller."""


def effective_amount(
    *,
    requested_amount: int,
    status: CommitmentStatus | None,
    end_time: datetime | None,
    now: datetime,
) -> int:
    """Return what a commitment claims of the capacity now.

    Args:
        requested_amount: Bytes of memory, or cores.
        status: Its status; None (deleted) claims nothing.
        end_time: Its end, None for never.
        now: The present, timezone-aware.

    Returns:
        The requested amount while pending, guaranteed or confirmed and not ended, else 0.

    Source: spec liquid, 11.4.
    """
    has_ended = end_time is not None and end_time <= now
    return requested_amount if status is not None and status.is_live and not has_ended else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentState:
    """What a commitment asks for, wherever it was read from.

    Attributes:
        commitment_uuid: Identity in Limes.
        project_id: Project that owns it.
        domain_id: Domain of the project, empty if unknown.
        resource_type: Memory or cores.
        requested_amount: Bytes of memory, or cores, as asked for in any status.
        status: Status in Limes; None if deleted or unknown.
        start_time: When it takes effect, if known.
        end_time: When it ends; None for never.
        creator_request_id: Trace id of the request that wrote it.
        name_prefix: Prefix of its slots' names; empty means the usual one.
        parent_generation: Generation of its row; 0 if it has none.
    """

    commitment_uuid: str
    project_id: str
    domain_id: str
    flavor_group_name: str
    zone: str
    resource_type: ResourceType
    requested_amount: int
    status: CommitmentStatus | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    creator_request_id: str = ""
    name_prefix: str = ""
    parent_generation: int = 0

    @property
    def slot_prefix(self) -> str:
        """Prefix of the names of its slots."""
        return self.name_prefix or slot_name_prefix(self.commitment_uuid)

    def effective_amount(self, now: datetime) -> int:
        """Return what it claims now: bytes of memory, or cores (``effective_amount``)."""
        return effective_amount(
            requested_amount=self.requested_amount,
            status=self.status,
            end_time=self.end_time,
            now=now,
        )

    def effective_memory_bytes(self, now: datetime) -> int:
        """Return the memory that its slots must hold now; 0 for cores."""
        return self.effective_amount(now) if self.resource_type is ResourceType.MEMORY else 0

    def effective_cores(self, now: datetime) -> int:
        """Return the cores that it claims now; 0 for memory."""
        return self.effective_amount(now) if self.resource_type is ResourceType.CORES else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimesCommitment:
    """A commitment as the Limes API returns it; times in unix seconds, 0 or None for absent.

    Attributes:
        uuid: Commitment uuid.
        project_id: Project it was read from.
        domain_id: Domain of that project.
        resource_name: LIQUID resource name.
        amount_units: Amount in declared units.
        status: Status as text.
        created_at: When it was created.
        confirmed_at: When it was confirmed.
        confirm_by: When it is wanted from.
        expires_at: When it ends.
    """

    uuid: str
    project_id: str
    domain_id: str
    resource_name: str
    zone: str
    amount_units: int
    status: str
    created_at: int
    confirmed_at: int | None = None
    confirm_by: int | None = None
    expires_at: int | None = None


def from_commitment(commitment: LimesCommitment, ram_unit_mib: int) -> CommitmentState:
    """Convert a commitment read from Limes.

    Cores commitments are converted like memory. A guaranteed commitment starts when it is wanted,
    not when it was created, so that it receives no VMs before.

    Args:
        commitment: What Limes returned.
        ram_unit_mib: Size of the group's declared RAM unit in MiB.

    Raises:
        CommitmentFormatError: Uuid, status, amount or times are malformed.
        InvalidResourceName: The resource is neither memory nor cores of a flavor group.

    Source: spec commitments, 5.1, Appendix B 9 and 17.
    """
    _check_uuid(commitment.uuid)
    group, resource_type = flavor_group_and_type_from_resource(commitment.resource_name)
    try:
        status = CommitmentStatus(commitment.status)
    except ValueError:
        raise CommitmentFormatError(f"unknown status {commitment.status!r}") from None
    start = commitment.confirmed_at or commitment.created_at
    if status is CommitmentStatus.GUARANTEED:
        start = commitment.confirm_by or start
    return CommitmentState(
        commitment_uuid=commitment.uuid,
        project_id=commitment.project_id,
        domain_id=commitment.domain_id,
        flavor_group_name=group,
        zone=commitment.zone,
        resource_type=resource_type,
        requested_amount=_ledger_amount(commitment.amount_units, resource_type, ram_unit_mib),
        status=status,
        start_time=_time(start),
        end_time=_time(commitment.expires_at),
    )


def from_change_commitment_target_state(
    change: CommitmentChange,
    *,
    project_id: str,
    domain_id: str,
    flavor_group_name: str,
    resource_type: ResourceType,
    zone: str,
    ram_unit_mib: int,
    now: datetime,
) -> CommitmentState:
    """Convert the wanted state of a commitment in a change request.

    Args:
        change: The change; its new status is the one converted.
        project_id: Project it stands under.
        domain_id: Domain of the project, empty if unknown.
        flavor_group_name: Group of the resource it stands under.
        resource_type: Type of that resource.
        zone: Zone of the request.
        ram_unit_mib: Size of the group's declared RAM unit in MiB.
        now: The present; the start of a live commitment that names none.

    Raises:
        CommitmentFormatError: The uuid or the amount is malformed.

    Source: spec commitments, 5.2; spec liquid, 11.4.
    """
    _check_uuid(change.uuid)
    is_live = change.new_status is not None and change.new_status.is_live
    return CommitmentState(
        commitment_uuid=change.uuid,
        project_id=project_id,
        domain_id=domain_id,
        flavor_group_name=flavor_group_name,
        zone=zone,
        resource_type=resource_type,
        requested_amount=_ledger_amount(change.amount_units, resource_type, ram_unit_mib),
        status=change.new_status,
        start_time=(change.confirm_by or now) if is_live else None,
        end_time=change.expires_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitmentRecord:
    """The desired part of a stored commitment, or its accepted copy.

    Attributes:
        commitment_uuid: Identity in Limes.
        project_id: Project that owns it.
        domain_id: Domain of the project, empty if unknown.
        resource_type: ``memory`` or ``cores``.
        requested_amount: Bytes of memory, or cores.
        state: Status as text.
        start_time: When it takes effect.
        end_time: When it ends; None for never.
    """

    commitment_uuid: str
    project_id: str
    domain_id: str
    flavor_group_name: str
    zone: str
    resource_type: str
    requested_amount: int
    state: str
    start_time: datetime | None = None
    end_time: datetime | None = None


def from_committed_resource(record: CommitmentRecord) -> CommitmentState:
    """Convert a stored commitment; the caller adds prefix, generation and request id.

    Raises:
        CommitmentFormatError: Resource type, status or uuid is not one that we know.

    Source: spec commitments, 5.3.
    """
    if record.resource_type not in set(ResourceType):
        raise CommitmentFormatError(f"unsupported resource type {record.resource_type!r}")
    if record.state not in set(CommitmentStatus):
        raise CommitmentFormatError(f"unknown status {record.state!r}")
    _check_uuid(record.commitment_uuid)
    return CommitmentState(
        commitment_uuid=record.commitment_uuid,
        project_id=record.project_id,
        domain_id=record.domain_id,
        flavor_group_name=record.flavor_group_name,
        zone=record.zone,
        resource_type=ResourceType(record.resource_type),
        requested_amount=record.requested_amount,
        status=CommitmentStatus(record.state),
        start_time=record.start_time,
        end_time=record.end_time,
    )


def _check_uuid(uuid: str) -> None:
    if not is_commitment_uuid(uuid):
        raise CommitmentFormatError("unexpected commitment format")


def _ledger_amount(amount_units: int, resource_type: ResourceType, ram_unit_mib: int) -> int:
    if resource_type is ResourceType.MEMORY:
        try:
            return declared_units_to_bytes(amount_units, ram_unit_mib)
        except UnitError as error:
            raise CommitmentFormatError(f"amount out of range: {error}") from None
    if not 0 <= amount_units <= MAX_LEDGER_AMOUNT:
        raise CommitmentFormatError(f"amount out of range: {amount_units} cores")
    return amount_units


def _time(unix_seconds: int | None) -> datetime | None:
    if unix_seconds is None or unix_seconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(unix_seconds, tz=UTC)
    except (OverflowError, ValueError, OSError):
        raise CommitmentFormatError(f"time out of range: {unix_seconds}") from None
