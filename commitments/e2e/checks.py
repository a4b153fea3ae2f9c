"""The checks and their order (spec liquid, 17; commitments, 23).

Info, reports, dry run, round trip, batch, transfer. Each request carries a fresh info version. A
rejection for want of capacity is a normal outcome: a full cloud is not a broken server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from commitments.domain.conformance import BrokenRule, check_capacity, check_info, check_usage
from commitments.domain.names import (
    InvalidResourceName,
    flavor_group_and_type_from_resource,
    resource_name_instances,
)
from commitments.e2e.bodies import CONFIRMED, PENDING, Change, ProjectChanges, change_body
from commitments.e2e.client import LiquidServer
from core.server_checks.results import CheckEnd, CheckFailed, CheckResult

CAPACITY_WORDS = ("insufficient capacity", "insufficient CPU cores")
ROUND_TRIP_UNITS = 2
BATCH_GROWN_UNITS = 3
BATCH_SECOND_UNITS = 1
TRANSFER_UNITS = 1
SHORT_LIFE = timedelta(minutes=5)
BATCH_LIFE = timedelta(minutes=10)
JsonObject = Mapping[str, Any]  # Any: decoded JSON


#: How these checks may end.
ENDS = (CheckEnd.PASSED, CheckEnd.REJECTED, CheckEnd.WARNED, CheckEnd.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiquidResult(CheckResult):
    """How a check of a zone's resource ended; both are empty where a check has none."""

    zone: str = ""
    resource: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """What to check with.

    Attributes:
        project_id: Holds the commitments; need not exist.
        other_project_id: Receives the transferred commitment.
        zones: Availability zones to check.
        keeps_commitments: Whether to leave behind what was accepted.
    """

    project_id: str
    other_project_id: str
    zones: tuple[str, ...]
    keeps_commitments: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A zone and a resource of the server, and the clock."""

    server: LiquidServer
    settings: CheckSettings
    clock: Callable[[], datetime]
    zone: str
    resource: str

    def uuid(self, kind: str) -> str:
        """Return a uuid nobody uses: milliseconds make it new in each run."""
        return f"e2e-{kind}{int(self.clock().timestamp() * 1000)}"

    def change(
        self,
        *projects: ProjectChanges,
        life: timedelta = SHORT_LIFE,
        is_dry_run: bool = False,
    ) -> str:
        """Send a change request with a fresh info version; return the rejection reason."""
        body = change_body(
            projects,
            zone=self.zone,
            resource=self.resource,
            info_version=_version(self.server.info()),
            expires_at=self.clock() + life,
            is_dry_run=is_dry_run,
        )
        return self.server.change(body)

    def own(self, *changes: Change, before_units: int, after_units: int) -> ProjectChanges:
        """Return changes of the project that the checks work in."""
        return ProjectChanges(
            project_id=self.settings.project_id,
            changes=changes,
            confirmed_before_units=before_units,
            confirmed_after_units=after_units,
        )

    def delete(self, *held: tuple[str, str, int]) -> None:
        """Take away commitments given as (uuid, status, amount in units).

        Raises:
            CheckFailed: The server refuses.
        """
        if self.settings.keeps_commitments:
            return
        changes = tuple(
            Change(uuid=uuid, old_status=status, new_status=None, amount_units=units)
            for uuid, status, units in held
        )
        confirmed_units = sum(units for _uuid, status, units in held if status == CONFIRMED)
        reason = self.change(self.own(*changes, before_units=confirmed_units, after_units=0))
        if reason:
            raise CheckFailed(f"a deletion was refused: {reason}")

    def usage_text(self, project_id: str) -> str:
        """Return how many VMs of a project are committed, from its checked usage report."""
        report = self.server.report_usage(project_id, self.settings.zones)
        _fail_on(check_usage(report, self.server.info(), self.settings.zones))
        committed, payg = _covered_vms(report, self.resource, self.zone)
        return f"VMs committed {committed}, pay as you go {payg}"


def run_checks(
    server: LiquidServer, settings: CheckSettings, clock: Callable[[], datetime]
) -> Iterator[LiquidResult]:
    """Run every check in order and yield its result as soon as it is known.

    Args:
        server: Whom to ask.
        settings: Projects and zones.
        clock: Gives the time, timezone-aware.
    """
    try:
        service_info = server.info()
        yield _info_result(service_info)
    except CheckFailed as error:
        yield LiquidResult(check="info", outcome=CheckEnd.FAILED, detail=str(error))
        return
    yield from _report_results(server, settings)
    resources = committable_resources(service_info)
    if not resources:
        yield LiquidResult(
            check="commitments",
            outcome=CheckEnd.WARNED,
            detail="no resource handles commitments, nothing to check",
        )
    for name, check in CHECKS:
        for zone in settings.zones:
            for resource in resources:
                place = _Place(
                    server=server, settings=settings, clock=clock, zone=zone, resource=resource
                )
                yield _result(name, check, place)


def committable_resources(service_info: JsonObject) -> tuple[str, ...]:
    """Return the names of the resources that handle commitments, sorted."""
    resources = service_info.get("resources") or {}
    return tuple(
        sorted(name for name, about in resources.items() if about.get("handlesCommitments"))
    )


def _result(name: str, check: Callable[[_Place], str], place: _Place) -> LiquidResult:
    try:
        detail = check(place)
    except CheckFailed as error:
        outcome, detail = CheckEnd.FAILED, str(error)
    else:
        is_full = any(words in detail for words in CAPACITY_WORDS)
        outcome = CheckEnd.REJECTED if is_full else CheckEnd.PASSED
    return LiquidResult(
        check=name, outcome=outcome, detail=detail, zone=place.zone, resource=place.resource
    )


def _info_result(service_info: JsonObject) -> LiquidResult:
    findings = check_info(service_info)
    if findings:
        return LiquidResult(check="info", outcome=CheckEnd.FAILED, detail=_findings_text(findings))
    version = _version(service_info)
    return LiquidResult(
        check="info",
        outcome=CheckEnd.WARNED if version < 0 else CheckEnd.PASSED,
        detail=f"version {version}",
    )


def _report_results(server: LiquidServer, settings: CheckSettings) -> Iterator[LiquidResult]:
    def capacity() -> None:
        report = server.report_capacity(settings.zones)
        _fail_on(check_capacity(report, server.info(), settings.zones))

    def usage() -> None:
        report = server.report_usage(settings.project_id, settings.zones)
        _fail_on(check_usage(report, server.info(), settings.zones))

    for name, check in (("capacity report", capacity), ("usage report", usage)):
        try:
            check()
            yield LiquidResult(check=name, outcome=CheckEnd.PASSED)
        except CheckFailed as error:
            yield LiquidResult(check=name, outcome=CheckEnd.FAILED, detail=str(error))


def _check_dry_run(place: _Place) -> str:
    change = Change(
        uuid=place.uuid("dry-"),
        old_status=None,
        new_status=CONFIRMED,
        amount_units=ROUND_TRIP_UNITS,
    )
    return _expect_room(
        place.change(
            place.own(change, before_units=0, after_units=ROUND_TRIP_UNITS), is_dry_run=True
        )
    )


def _check_round_trip(place: _Place) -> str:
    """Create, repeat, read the usage, delete: also when a step between fails."""
    uuid, units = place.uuid(""), ROUND_TRIP_UNITS
    create = place.own(
        Change(uuid=uuid, old_status=None, new_status=CONFIRMED, amount_units=units),
        before_units=0,
        after_units=units,
    )
    reason = _expect_room(place.change(create))
    if reason:
        return reason
    try:
        repeated = place.change(create)
        if repeated:
            raise CheckFailed(f"an accepted request was rejected when repeated: {repeated}")
        return place.usage_text(place.settings.project_id)
    finally:
        place.delete((uuid, CONFIRMED, units))


def _check_batch(place: _Place) -> str:
    """Grow a pending commitment and add another, in one request."""
    first, second = place.uuid("batch-a-"), place.uuid("batch-b-")
    pending = Change(uuid=first, old_status=None, new_status=PENDING, amount_units=1)
    reason = place.change(place.own(pending, before_units=0, after_units=0), life=BATCH_LIFE)
    if reason:
        raise CheckFailed(f"a pending commitment was rejected: {reason}")
    total_units = BATCH_GROWN_UNITS + BATCH_SECOND_UNITS
    held = [(first, PENDING, 1)]
    try:
        reason = _expect_room(
            place.change(
                place.own(
                    Change(
                        uuid=first,
                        old_status=PENDING,
                        new_status=CONFIRMED,
                        amount_units=BATCH_GROWN_UNITS,
                    ),
                    Change(
                        uuid=second,
                        old_status=None,
                        new_status=CONFIRMED,
                        amount_units=BATCH_SECOND_UNITS,
                    ),
                    before_units=0,
                    after_units=total_units,
                ),
                life=BATCH_LIFE,
            )
        )
        if reason:
            return reason
        held = [(first, CONFIRMED, BATCH_GROWN_UNITS), (second, CONFIRMED, BATCH_SECOND_UNITS)]
        return place.usage_text(place.settings.project_id)
    finally:
        place.delete(*held)


def _check_transfer(place: _Place) -> str:
    """Move a commitment to another project and back, so that both sort orders are met."""
    uuid, units = place.uuid("move-"), TRANSFER_UNITS
    one, other = place.settings.project_id, place.settings.other_project_id
    create = Change(uuid=uuid, old_status=None, new_status=CONFIRMED, amount_units=units)
    reason = _expect_room(place.change(place.own(create, before_units=0, after_units=units)))
    if reason:
        return reason
    owner = one
    try:
        for source, target in ((one, other), (other, one)):
            reason = place.change(*_transfer(uuid, units, source, target))
            if reason:
                raise CheckFailed(f"a transfer to project {target} was rejected: {reason}")
            owner = target
        return "moved there and back"
    finally:
        if owner == one:
            place.delete((uuid, CONFIRMED, units))
        else:
            place.change(_leave(uuid, units, owner))


def _transfer(uuid: str, units: int, source: str, target: str) -> tuple[ProjectChanges, ...]:
    arrive = Change(uuid=uuid, old_status=None, new_status=CONFIRMED, amount_units=units)
    return (
        _leave(uuid, units, source),
        ProjectChanges(
            project_id=target,
            changes=(arrive,),
            confirmed_before_units=0,
            confirmed_after_units=units,
        ),
    )


def _leave(uuid: str, units: int, project_id: str) -> ProjectChanges:
    leave = Change(uuid=uuid, old_status=CONFIRMED, new_status=None, amount_units=units)
    return ProjectChanges(
        project_id=project_id,
        changes=(leave,),
        confirmed_before_units=units,
        confirmed_after_units=0,
    )


CHECKS: tuple[tuple[str, Callable[[_Place], str]], ...] = (
    ("dry run", _check_dry_run),
    ("round trip", _check_round_trip),
    ("batch", _check_batch),
    ("transfer", _check_transfer),
)


def _expect_room(reason: str) -> str:
    """Return a rejection for want of capacity, empty when accepted.

    Raises:
        CheckFailed: It was rejected for anything else.
    """
    if reason and not any(words in reason for words in CAPACITY_WORDS):
        raise CheckFailed(f"rejected for an unexpected reason: {reason}")
    return reason


def _version(service_info: JsonObject) -> int:
    version = service_info.get("version")
    if not isinstance(version, int):
        raise CheckFailed(f"info: version is no number: {version!r}")
    return version


def _covered_vms(report: JsonObject, resource: str, zone: str) -> tuple[int, int]:
    """Return the VMs with and without a commitment of a resource's flavor group.

    They are listed at its instances, where those are reported, else at the resource itself.
    """
    name = _resource_with_vms(resource)
    try:
        resources = report["resources"]
        in_zone = resources[name if name in resources else resource]["perAZ"][zone]
    except (KeyError, TypeError) as error:
        raise CheckFailed(f"the usage report lacks {resource} in {zone}") from error
    vms = in_zone.get("subresources") or ()
    committed = sum(bool((vm.get("attributes") or {}).get("commitment_id")) for vm in vms)
    return committed, len(vms) - committed


def _resource_with_vms(resource: str) -> str:
    try:
        group, _type = flavor_group_and_type_from_resource(resource)
    except InvalidResourceName:
        return resource
    return resource_name_instances(group)


def _fail_on(findings: Sequence[BrokenRule]) -> None:
    if findings:
        raise CheckFailed(_findings_text(findings))


def _findings_text(findings: Sequence[BrokenRule]) -> str:
    return "; ".join(str(finding) for finding in findings)
