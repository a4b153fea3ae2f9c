"""Reading what Keystone and Limes list (spec commitments, 16.1-16.3; spec liquid, 15.2, 15.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from django.conf import settings

from commitments.clients.cloud import Cloud, ProjectAnswer
from commitments.domain.limes_intake import (
    SKIP_REASON_DECIDED_BY_LIMES,
    SKIP_REASON_UNKNOWN_FLAVOR_GROUP,
    Converted,
    Skipped,
    Understanding,
    is_ours,
    take_in,
)
from commitments.domain.limes_wire import kept_record
from commitments.services.intake import (
    SeenRows,
    resources_decided_by_limes,
    resources_of_retired_groups,
)
from commitments.services.sync_runs import (
    KNOWN,
    KNOWN_BY_ZONE,
    PROJECTS,
    NothingUnderstood,
    SyncProblem,
)

log = structlog.get_logger(__name__)

SHOWN_PROBLEMS = 20
Listed = list[tuple[Converted, Mapping[str, Any]]]  # Any: the record as Limes sent it


@dataclass(slots=True, kw_only=True)
class Fetched:
    """What Keystone and Limes said.

    Attributes:
        projects: How many projects there are.
        listed: What is understood, by uuid.
        known: Uuids of everything listed, understood or not.
        zones: Zone to how many of them are listed for it.
        skipped: Counts by reason.
        meant_for_us: How many of those are of our service, or of a resource like ours.
        explained: How many of those are of resources that need no row of ours, or no new one.
        problems: Projects that could not be read, with the cause.
        unasked: Projects that were not asked about, since too many others failed.
    """

    projects: int
    listed: dict[str, tuple[Converted, Mapping[str, Any]]] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    zones: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    meant_for_us: int = 0
    explained: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    unasked: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every project was read."""
        return not self.problems and not self.unasked

    @property
    def counts(self) -> dict[str, object]:
        """What was read, as the run's row tells it."""
        return {
            PROJECTS: self.projects,
            KNOWN: len(self.known),
            KNOWN_BY_ZONE: dict(sorted(self.zones.items())),
            "understood": len(self.listed),
            "unreadable_projects": len(self.problems) + self.unasked,
            **{f"skipped_{reason}": count for reason, count in sorted(self.skipped.items())},
        }


def fetch(cloud: Cloud, ram_unit_mib_by_group: Mapping[str, int]) -> Fetched:
    """Read all commitments of all projects, and understand those that are ours.

    Args:
        cloud: Keystone and Limes.
        ram_unit_mib_by_group: Declared RAM unit in MiB of every known flavor group.

    Raises:
        CloudUnavailable: projects could not be listed.
        NotReady: flavor groups have not been extracted yet.
    """
    projects = cloud.list_projects()
    fetched = Fetched(projects=len(projects))
    understand: Understanding = partial(
        take_in,
        ram_unit_mib_by_group=ram_unit_mib_by_group,
        service_type=settings.HEADROOM.liquid.limes_service_type,
        decided_by_limes=resources_decided_by_limes(ram_unit_mib_by_group),
    )
    retired = resources_of_retired_groups()
    answered = 0
    for answer in cloud.list_commitments(projects):
        answered += 1
        if answer.error:
            fetched.problems[answer.project.project_id] = answer.error
            continue
        for raw in answer.commitments:
            skipped = _take(fetched, raw, answer, understand)
            if skipped is not None:
                _count_skipped(fetched, skipped, raw, retired)
    fetched.unasked = len(projects) - answered
    return fetched


def _take(
    fetched: Fetched,
    raw: Mapping[str, Any],
    answer: ProjectAnswer,
    understand: Understanding,
) -> Skipped | None:
    """Convert one listed commitment, or return why not; both make it known."""
    project = answer.project
    identity = {"project_id": project.project_id, "domain_id": project.domain_id}
    record = answer.wire.read_record(raw, **identity)
    outcome = record if isinstance(record, Skipped) else understand(record)
    if isinstance(zone := raw.get("availability_zone"), str):
        fetched.zones[zone] += 1
    if isinstance(outcome, Skipped):
        if outcome.uuid:
            fetched.known.add(outcome.uuid)
        return outcome
    uuid = outcome.state.commitment_uuid
    fetched.known.add(uuid)
    fetched.listed[uuid] = (outcome, kept_record(raw, **identity))
    return None


def _count_skipped(
    fetched: Fetched, skipped: Skipped, raw: Mapping[str, Any], retired: Collection[str]
) -> None:
    name, service_type = str(raw.get("resource_name")), str(raw.get("service_type"))
    ours = settings.HEADROOM.liquid.limes_service_type
    fetched.skipped[skipped.reason] += 1
    fetched.meant_for_us += is_ours(service_type, name, configured=ours)
    is_decided = skipped.reason == SKIP_REASON_DECIDED_BY_LIMES
    is_retired = skipped.reason == SKIP_REASON_UNKNOWN_FLAVOR_GROUP and name in retired
    fetched.explained += is_decided or is_retired
    log.debug("commitment_skipped", uuid=skipped.uuid, reason=skipped.reason)


def check_fetched(fetched: Fetched, seen: SeenRows) -> None:
    """Refuse answers that say nothing of what we hold.

    These are answers of which none could be read, and a whole list in which commitments are ours,
    by their look or uuid, and none is understood. A list of nothing but other services is fine.

    Raises:
        SyncProblem: Limes cannot be read, or a name or a unit is configured wrongly.
    """
    asked = fetched.projects - fetched.unasked
    if not fetched.listed and fetched.problems and len(fetched.problems) == asked:
        raise SyncProblem(unread_projects(fetched), code="limes_unavailable")
    if not fetched.is_complete or fetched.listed or fetched.explained:
        return
    if not fetched.meant_for_us and seen.generations.keys().isdisjoint(fetched.known):
        return
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(fetched.skipped.items()))
    ours = settings.HEADROOM.liquid.limes_service_type
    raise NothingUnderstood(
        f"Limes lists {fetched.skipped.total()} commitments and none is understood: {reasons}; "
        f"HEADROOM_LIQUID__LIMES_SERVICE_TYPE is {ours!r}"
    )


def unread_projects(fetched: Fetched) -> str:
    """Return which projects could not be read, and why."""
    shown = sorted(fetched.problems.items())[:SHOWN_PROBLEMS]
    unread = len(fetched.problems) + fetched.unasked
    lines = [f"{unread} of {fetched.projects} projects could not be read"]
    lines += [f"{project_id}: {problem}" for project_id, problem in shown]
    return "; ".join(lines)
