"""Commitments as a version of Limes' API writes them (spec liquid, 15.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from commitments.domain.limes_intake import (
    SKIP_REASON_INVALID_COMMITMENT,
    LimesRecord,
    Skipped,
)
from commitments.domain.state import LimesCommitment

Json = Any  # a value of a JSON document
INT64_MAX: Final = 2**63 - 1
MAX_UNIX_SECONDS: Final = 253_402_300_799  # end of the year 9999
LONGEST_TEXT: Final = 255
SECRET_FIELDS: Final = frozenset({"transfer_token"})


class _MalformedError(ValueError):
    """A field has another type or range than it should."""


class LimesWire(Protocol):
    """A version of Limes' API that lists commitments.

    Attributes:
        catalog_type: Service type in Keystone's catalog.
        version: Last part of its address there.
    """

    catalog_type: str
    version: str

    def commitments_path(self, *, project_id: str, domain_id: str) -> str:
        """Return where the commitments of a project are listed, below the version's address."""

    def listed(self, document: Json) -> list[dict[str, Json]] | None:
        """Return the commitments of an answer, None when it has another shape."""

    def read_record(
        self, raw: Mapping[str, Json], *, project_id: str, domain_id: str
    ) -> LimesRecord | Skipped:
        """Return a commitment ready to be taken in, or why it cannot be read.

        Args:
            raw: The commitment as Limes sent it.
            project_id: Project that was asked about.
            domain_id: Its domain.
        """


class _VersionOne:
    """Commitments of v1: the names are those of ``identity_in_v1_api``, amounts have a unit."""

    catalog_type = "resources"
    version = "v1"

    def commitments_path(self, *, project_id: str, domain_id: str) -> str:
        """Return where the commitments of a project are listed."""
        return f"domains/{domain_id}/projects/{project_id}/commitments"

    def listed(self, document: Json) -> list[dict[str, Json]] | None:
        """Return the commitments of an answer."""
        found = document.get("commitments") if isinstance(document, dict) else None
        is_list = isinstance(found, list) and all(isinstance(item, dict) for item in found)
        return found if is_list else None

    def read_record(
        self, raw: Mapping[str, Json], *, project_id: str, domain_id: str
    ) -> LimesRecord | Skipped:
        """Return a listed commitment ready to be taken in."""
        return read_record(raw, project_id=project_id, domain_id=domain_id)


V1: Final = _VersionOne()


def read_record(
    raw: Mapping[str, Json], *, project_id: str, domain_id: str
) -> LimesRecord | Skipped:
    """Return a listed commitment ready to be taken in, or why it cannot be read.

    Args:
        raw: The commitment as Limes sent it.
        project_id: Project that was asked about.
        domain_id: Its domain.
    """
    try:
        return LimesRecord(
            limes_id=_number(raw, "id", INT64_MAX) if raw.get("id") is not None else None,
            service_type=_text(raw, "service_type"),
            unit=_text(raw, "unit"),
            commitment=LimesCommitment(
                uuid=_text(raw, "uuid"),
                project_id=project_id,
                domain_id=domain_id,
                resource_name=_text(raw, "resource_name"),
                zone=_text(raw, "availability_zone"),
                amount_units=_number(raw, "amount", 2**64 - 1),
                status=_text(raw, "status"),
                created_at=_seconds(raw, "created_at") or 0,
                confirmed_at=_seconds(raw, "confirmed_at"),
                confirm_by=_seconds(raw, "confirm_by"),
                expires_at=_seconds(raw, "expires_at"),
            ),
        )
    except _MalformedError as problem:
        uuid = raw.get("uuid")
        return Skipped(
            uuid=uuid if isinstance(uuid, str) else "",
            reason=SKIP_REASON_INVALID_COMMITMENT,
            detail=str(problem),
        )


def kept_record(raw: Mapping[str, Json], *, project_id: str, domain_id: str) -> dict[str, Json]:
    """Return what is kept of a listed commitment: all of it, with its project, without secrets."""
    kept = {key: entry for key, entry in raw.items() if key not in SECRET_FIELDS}
    return kept | {"project_id": project_id, "domain_id": domain_id}


def _text(raw: Mapping[str, Json], key: str) -> str:
    found = raw.get(key)
    if found is None:
        return ""
    if not isinstance(found, str) or len(found) > LONGEST_TEXT or "\x00" in found:
        raise _MalformedError(f"{key}: must be text of at most {LONGEST_TEXT} characters")
    return found


def _number(raw: Mapping[str, Json], key: str, most: int) -> int:
    found = raw.get(key)
    if type(found) is not int or not 0 <= found <= most:
        raise _MalformedError(f"{key}: must be a whole number from 0 to {most}")
    return found


def _seconds(raw: Mapping[str, Json], key: str) -> int | None:
    return None if raw.get(key) is None else _number(raw, key, MAX_UNIX_SECONDS)
