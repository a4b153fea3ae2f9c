"""From LIQUID request bodies to the domain's requests (spec liquid, 4.2-4.5).

Only the shape is checked here: types, ranges, lengths, known words. Rules that need our rows are
the services' business.
"""

from __future__ import annotations

from commitments.api.unknown_fields import (
    CHANGE_REQUEST,
    QUOTA_REQUEST,
    Known,
    count_unknown_fields,
)
from commitments.domain.changeset import (
    ChangeRequest,
    CommitmentChange,
    ProjectChanges,
    ResourceChangeset,
)
from commitments.domain.statuses import CommitmentStatus
from commitments.services.quota import QuotaRequest, ResourceQuota
from journal.errors import InvalidInput
from journal.json_node import JSONNode, check_text, parse_json

MAX_PROJECT_ID_LENGTH = 64
MAX_NAME_LENGTH = 255
MAX_TEXT_LENGTH = 4096
RESERVED_ZONES = frozenset({"any", "unknown", "total"})


def parse_zones(body: bytes, *, is_lenient: bool, known: Known) -> tuple[str, ...]:
    """Return ``allAZs`` of a capacity or usage request, in the order given, once each.

    Args:
        body: The request body.
        is_lenient: Whether an empty or undecodable body counts as one without zones.
        known: Fields of the request; others are logged.

    Raises:
        InvalidInput: the body is not a request, and leniency was not asked for.
    """
    try:
        node = parse_json(body)
        count_unknown_fields(node.content, known)
        zones = node.member("allAZs").texts(max_length=MAX_NAME_LENGTH)
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
    node = parse_json(body)
    count_unknown_fields(node.content, QUOTA_REQUEST)
    metadata = node.member("projectMetadata")
    uuid = metadata.member("uuid").text(max_length=MAX_TEXT_LENGTH)
    if uuid and uuid != project_id:
        raise metadata.member("uuid").wrong("differs from the project id in the path")
    domain = metadata.member("domain")
    resources = node.member("resources").members(max_key_length=MAX_NAME_LENGTH)
    return QuotaRequest(
        project_id=project_id,
        project_name=metadata.member("name").text(max_length=MAX_NAME_LENGTH),
        domain_id=domain.member("uuid").text(max_length=MAX_PROJECT_ID_LENGTH),
        domain_name=domain.member("name").text(max_length=MAX_NAME_LENGTH),
        resources={name: _resource_quota(entry) for name, entry in resources},
    )


def parse_change_request(body: bytes) -> ChangeRequest:
    """Return the change of commitments that a request asks for.

    Raises:
        InvalidInput: not a change request, or its zone is empty or a reserved word.
    """
    node = parse_json(body)
    count_unknown_fields(node.content, CHANGE_REQUEST)
    return change_request(node)


def change_request(node: JSONNode) -> ChangeRequest:
    """Return the change of commitments that a part of a body asks for.

    Raises:
        InvalidInput: not a change request, or its zone is empty or a reserved word.
    """
    is_dry_run = node.member("dryRun").flag()
    info_version = node.member("infoVersion").signed()
    by_project = {
        project_id: _project_changes(entry, project_id)
        for project_id, entry in node.member("byProject").members(
            max_key_length=MAX_PROJECT_ID_LENGTH
        )
    }
    zone = node.member("az").text(max_length=MAX_NAME_LENGTH)
    if not zone:
        raise node.member("az").wrong("must not be empty")
    if zone in RESERVED_ZONES:
        raise node.member("az").wrong(f"must be an availability zone, not {zone!r}")
    return ChangeRequest(
        zone=zone, info_version=info_version, is_dry_run=is_dry_run, by_project=by_project
    )


def _resource_quota(node: JSONNode) -> ResourceQuota:
    zones = node.member("perAZ").members(max_key_length=MAX_NAME_LENGTH)
    return ResourceQuota(
        total_units=node.member("quota").unsigned(),
        units_by_zone={zone: entry.member("quota").unsigned() for zone, entry in zones},
    )


def _project_changes(node: JSONNode, project_id: str) -> ProjectChanges:
    if not project_id:
        raise node.wrong("the project id must not be empty")
    domain = node.member("projectMetadata").member("domain")
    resources = node.member("byResource").members(max_key_length=MAX_NAME_LENGTH)
    return ProjectChanges(
        domain_id=domain.member("uuid").text(max_length=MAX_PROJECT_ID_LENGTH),
        domain_name=domain.member("name").text(max_length=MAX_NAME_LENGTH),
        by_resource={name: _changeset(entry) for name, entry in resources},
    )


def _changeset(node: JSONNode) -> ResourceChangeset:
    return ResourceChangeset(
        total_confirmed_before=node.member("totalConfirmedBefore").unsigned(),
        total_confirmed_after=node.member("totalConfirmedAfter").unsigned(),
        total_guaranteed_before=node.member("totalGuaranteedBefore").unsigned(),
        total_guaranteed_after=node.member("totalGuaranteedAfter").unsigned(),
        commitments=tuple(_commitment(item) for item in node.member("commitments").items()),
    )


def _commitment(node: JSONNode) -> CommitmentChange:
    return CommitmentChange(
        uuid=node.member("uuid").text(max_length=MAX_TEXT_LENGTH),
        old_status=_status(node.member("oldStatus")),
        new_status=_status(node.member("newStatus")),
        amount_units=node.member("amount").unsigned(),
        expires_at=node.member("expiresAt").time(),
        confirm_by=node.member("confirmBy").time(),
        old_expires_at=node.member("oldExpiresAt").time(),
    )


def _status(node: JSONNode) -> CommitmentStatus | None:
    if not node.is_set:
        return None
    text = node.text(max_length=MAX_TEXT_LENGTH)
    try:
        return CommitmentStatus(text)
    except ValueError:
        allowed = ", ".join(status.value for status in CommitmentStatus)
        raise node.wrong(f"must be one of {allowed}, or null") from None
