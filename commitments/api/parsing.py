"""From LIQUID request bodies to the domain's requests (spec liquid, 4.2-4.5).

Only the shape is checked here: types, ranges, lengths, known words. Rules that need our rows are
the services' business.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import structlog
from pydantic import AfterValidator, Field
from pydantic.alias_generators import to_camel

from commitments.domain.changeset import (
    ChangeRequest,
    CommitmentChange,
    ProjectChanges,
    ResourceChangeset,
)
from commitments.domain.statuses import CommitmentStatus
from commitments.services.quota import QuotaRequest, ResourceQuota
from core.json_bodies import (
    Body,
    Elements,
    Id,
    Members,
    Moment,
    Name,
    Signed,
    Text,
    Unsigned,
    checked,
    given,
    one_of,
    parsed,
    problem,
    unknown_fields,
    wrong,
)
from core.stored_text import check_text
from journal.errors import InvalidInput

log = structlog.get_logger(__name__)

MAX_PROJECT_ID_LENGTH = 64
MOST_UNKNOWN = 20
LONGEST_UNKNOWN = 120
RESERVED_ZONES = frozenset({"any", "unknown", "total"})


_Model = TypeVar("_Model", bound="_LiquidBody")


def _zone(name: str) -> str:
    if name in RESERVED_ZONES:
        raise problem(f"must be an availability zone, not {name!r}")
    return name


class _LiquidBody(Body, alias_generator=to_camel):
    """Fields without a type are known, but nobody looks at them."""


class _Domain(_LiquidBody):
    uuid: Id = ""
    name: Name = ""


class _Metadata(_LiquidBody):
    uuid: object = None
    name: object = None
    domain: _Domain = _Domain()


class ZonesRequest(_LiquidBody):
    """A request for a report on zones."""

    all_zones: Elements[Name] = Field((), alias="allAZs")


class CapacityRequest(ZonesRequest):
    """A request for a report on capacity."""

    demand_by_resource: object = None


class UsageRequest(ZonesRequest):
    """A request for a report on a project."""

    project_metadata: object = None
    serialized_state: object = None


class _ZoneQuota(_LiquidBody):
    quota: Unsigned = 0


class _ResourceQuota(_ZoneQuota):
    per_zone: Members[Name, _ZoneQuota] = Field({}, alias="perAZ")


class _QuotaMetadata(_Metadata):
    uuid: Text = ""
    name: Name = ""


class QuotaBody(_LiquidBody):
    """A request to set the quota of a project."""

    resources: Members[Name, _ResourceQuota] = {}
    project_metadata: _QuotaMetadata = _QuotaMetadata()


class _Commitment(_LiquidBody):
    uuid: Text = ""
    old_status: Annotated[CommitmentStatus, one_of(CommitmentStatus, ", or null")] | None = None
    new_status: Annotated[CommitmentStatus, one_of(CommitmentStatus, ", or null")] | None = None
    amount_units: Unsigned = Field(0, alias="amount")
    expires_at: Moment = None
    confirm_by: Moment = None
    old_expires_at: Moment = None


class _Changeset(_LiquidBody):
    total_confirmed_before: Unsigned = 0
    total_confirmed_after: Unsigned = 0
    total_guaranteed_before: Unsigned = 0
    total_guaranteed_after: Unsigned = 0
    commitments: Elements[_Commitment] = ()

    def changeset(self) -> ResourceChangeset:
        """Return the changes of a project and resource."""
        changes = tuple(CommitmentChange(**vars(one)) for one in self.commitments)
        return ResourceChangeset(**{**vars(self), "commitments": changes})


class _ProjectChanges(_LiquidBody):
    project_metadata: _Metadata = _Metadata()
    by_resource: Members[Name, _Changeset] = {}

    def changes(self) -> ProjectChanges:
        """Return the changes of a project."""
        domain = self.project_metadata.domain
        return ProjectChanges(
            domain_id=domain.uuid,
            domain_name=domain.name,
            by_resource={name: one.changeset() for name, one in self.by_resource.items()},
        )


class ChangeBody(_LiquidBody):
    """A request to change commitments, or a part of a body that is one."""

    is_dry_run: bool = Field(default=False, alias="dryRun")
    info_version: Signed = 0
    by_project: Members[Annotated[Id, given("must not be empty")], _ProjectChanges] = {}
    az: Annotated[Name, given("must not be empty"), AfterValidator(_zone)] = Field(
        "", validate_default=True
    )

    def request(self) -> ChangeRequest:
        """Return what is asked for."""
        return ChangeRequest(
            zone=self.az,
            info_version=self.info_version,
            is_dry_run=self.is_dry_run,
            by_project={project: one.changes() for project, one in self.by_project.items()},
        )


def _read(model: type[_Model], body: bytes) -> _Model:
    """Return a body; fields that are ignored for being unknown are logged."""
    read = checked(lambda content: model.model_validate(content, extra="allow"), parsed(body))
    found = list(unknown_fields(read))
    if found:
        names = [name[:LONGEST_UNKNOWN] for name in found[:MOST_UNKNOWN]]
        log.debug("unknown_request_fields", count=len(found), names=names)
    return read


def parse_zones(
    body: bytes, model: type[ZonesRequest], *, is_lenient: bool = False
) -> tuple[str, ...]:
    """Return ``allAZs`` of a capacity or usage request, in the order given, once each.

    Args:
        body: The request body.
        model: Fields of the request.
        is_lenient: Whether an empty or undecodable body counts as one without zones.

    Raises:
        InvalidInput: the body is not a request, and leniency was not asked for.
    """
    try:
        zones = _read(model, body).all_zones
    except InvalidInput:
        if is_lenient:
            return ()
        raise
    return tuple(dict.fromkeys(zones))


def parse_project_id(text: str) -> str:
    """Return the project id of a path.

    Raises:
        InvalidInput: empty, too long or not storable.
    """
    if not text:
        raise InvalidInput("project id: is missing in the path")
    return check_text(text, path="project id", max_length=MAX_PROJECT_ID_LENGTH)


def parse_quota_request(body: bytes, *, project_id: str) -> QuotaRequest:
    """Return the quota that a request sets.

    Args:
        body: The request body.
        project_id: The project of the path.

    Raises:
        InvalidInput: not a quota request, or its metadata is that of another project.
    """
    read = _read(QuotaBody, body)
    metadata = read.project_metadata
    if metadata.uuid and metadata.uuid != project_id:
        raise wrong("projectMetadata.uuid", "differs from the project id in the path")
    return QuotaRequest(
        project_id=project_id,
        project_name=metadata.name,
        domain_id=metadata.domain.uuid,
        domain_name=metadata.domain.name,
        resources={
            name: ResourceQuota(
                total_units=one.quota,
                units_by_zone={zone: of_zone.quota for zone, of_zone in one.per_zone.items()},
            )
            for name, one in read.resources.items()
        },
    )


def parse_change_request(body: bytes) -> ChangeRequest:
    """Return the change of commitments that a request asks for.

    Raises:
        InvalidInput: not a change request, or its zone is empty or a reserved word.
    """
    return _read(ChangeBody, body).request()
