"""Who tells which projects and commitments there are (spec liquid, 15.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from commitments.domain.limes_wire import V1, LimesWire
from journal.errors import HeadroomError

Json = Any  # a JSON document as the other side sent it


class CloudUnavailable(HeadroomError):  # noqa: N818 - a state of the other side
    """Keystone cannot be asked, or answers something else than it should."""

    code = "keystone_unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudProject:
    """A project as Keystone lists it."""

    project_id: str
    domain_id: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectAnswer:
    """What Limes says of one project.

    Attributes:
        project: Which.
        commitments: What it lists; empty when it does not know the project.
        error: Why the project could not be read; empty when it was.
        wire: How those commitments are written.
    """

    project: CloudProject
    commitments: Sequence[Mapping[str, Json]] = ()
    error: str = ""
    wire: LimesWire = V1


class Cloud(Protocol):
    """Who tells which projects and commitments there are."""

    def list_projects(self) -> Sequence[CloudProject]:
        """Return every project.

        Raises:
            CloudUnavailable: the list could not be read to its end.
        """

    def list_commitments(self, projects: Sequence[CloudProject]) -> Iterator[ProjectAnswer]:
        """Yield what Limes says of each project, in any order.

        A project that cannot be read has an ``error``; this never raises because of one. Projects
        that were not asked about, because too many others failed, are left out.
        """
