"""Section ``limes`` of region files: commitments and quotas (spec region-file)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.db.models import Exists, OuterRef

from capacity.figures.quota import OUTBOX_TOPIC as QUOTA_TOPIC
from capacity.groups.units import declared_units_to_gib, gib_to_declared_units
from capacity.models import ProjectQuota, Reservation
from commitments.domain.limes_intake import (
    Converted,
    LimesRecord,
    Skipped,
    StoredCommitment,
    limes_record_of,
    take_in,
)
from commitments.domain.names import InvalidResourceName, flavor_group_from_resource
from commitments.domain.state import LimesCommitment
from commitments.domain.statuses import CommitmentStatus
from commitments.models import Commitment, CommitmentEvent, InstanceAssignment
from commitments.selectors.live import live_commitments
from commitments.services.commitment_rows import spec_record, stored_state
from commitments.services.import_runs import recorded_import
from commitments.services.intake import (
    Intake,
    ram_units_of_known_groups,
    take_in_commitments,
)
from commitments.services.repair import count_due_commitments, repair_due_commitments
from commitments.services.verification import verify_slots, zones_to_verify
from commitments.services.vm_list import accept_vm_lists, discount_gone_vms
from hosts.models import Domain, Project
from hosts.region.node import ID_MAX, INT64_MAX, UINT64_MAX, Json, Node, plain_json
from hosts.region.prune import is_believed, zones_left_out, zones_of_reported_hosts
from hosts.region.registry import DumpOptions, Phase, RegionSection, Step, registry
from hosts.region.run import ImportRun, Unique
from hosts.region.servers import SERVERS
from hosts.region.writing import write_part
from journal.clock import database_now
from journal.errors import NotReady
from journal.models import Outbox

COMMITMENTS: Final = "limes.commitments"
QUOTAS: Final = "limes.quotas"
MAX_UNIX_SECONDS: Final = 253_402_300_799  # end of the year 9999
BATCH_ROWS: Final = 1000


def register() -> None:
    """Register the sections and steps of this module."""
    registry.add(
        RegionSection(path=COMMITMENTS, reader=_read_commitments, dumper=_dump_commitments),
        RegionSection(path=QUOTAS, reader=_read_quotas, dumper=_dump_quotas),
        Step(Phase.WRITE, 80, "quotas", _write_quotas, after=frozenset({QUOTAS})),
        Step(
            Phase.WRITE,
            90,
            "commitments",
            _write_commitments,
            after=frozenset({COMMITMENTS}),
            is_divided=True,
        ),
        # Before flavor groups are refreshed: a group that only these refer to goes with them.
        Step(Phase.WRITE, 58, "prune commitments", _prune_commitments, is_divided=True),
        Step(Phase.FINISH, 90, "accepted VM lists", _accept_vm_lists),
        Step(Phase.FOLLOW_UP, 50, "slots", _place, after=frozenset({COMMITMENTS}), is_divided=True),
        Step(Phase.FOLLOW_UP, 60, "VMs in slots", _verify_slots, is_divided=True),
    )
    registry.witnesses["commitments"] = recorded_import
    registry.expectations["commitments"] = discount_gone_vms


def _read_commitments(run: ImportRun) -> Callable[[Node], None]:
    collected: list[tuple[LimesRecord, dict[str, Json]]] = []
    run.stash[COMMITMENTS] = collected
    ids, uuids = Unique("commitment"), Unique("commitment")

    def read(node: Node) -> None:
        record = _record_of(node)
        if record.limes_id is not None:
            ids.check(node, record.limes_id, "id")
        if record.commitment.uuid:
            uuids.check(node, record.commitment.uuid, "uuid")
        collected.append((record, plain_json(node.fields)))

    return read


def _record_of(node: Node) -> LimesRecord:
    def seconds(key: str, *, required: bool = False) -> int | None:
        if not required and not node.has(key):
            return None
        return node.integer(key, high=MAX_UNIX_SECONDS)

    if "uuid" not in node.fields:
        raise node.error("uuid", "missing")
    return LimesRecord(
        limes_id=node.integer("id", high=INT64_MAX) if node.has("id") else None,
        service_type=node.text("service_type"),
        unit=node.text("unit", default=""),
        commitment=LimesCommitment(
            uuid=node.text("uuid", default=""),
            project_id=node.text("project_id", max_length=ID_MAX),
            domain_id=node.text("domain_id", max_length=ID_MAX),
            resource_name=node.text("resource_name"),
            zone=node.text("availability_zone"),
            amount_units=node.integer("amount", high=UINT64_MAX),
            status=node.text("status", default=""),
            created_at=seconds("created_at", required=True) or 0,
            confirmed_at=seconds("confirmed_at"),
            confirm_by=seconds("confirm_by"),
            expires_at=seconds("expires_at", required=True),
        ),
    )


def _write_commitments(run: ImportRun) -> None:
    records: list[tuple[LimesRecord, dict[str, Json]]] = run.stash[COMMITMENTS]
    known = ram_units_of_known_groups()
    converted: list[tuple[Converted, Mapping[str, Any]]] = []
    for record, raw in records:
        outcome = take_in(record, known, service_type=_service_type())
        if isinstance(outcome, Skipped):
            shown = outcome.uuid or f"id {record.limes_id}"
            run.report.skip(COMMITMENTS, shown, outcome.reason, outcome.detail)
        else:
            converted.append((outcome, raw))
    intake = Intake(
        actor=run.actor,
        request_id=run.request_id,
        now=run.now,
        with_ended=run.options.with_ended,
    )
    by_zone: defaultdict[str, list[tuple[Converted, Mapping[str, Any]]]] = defaultdict(list)
    for one in converted:
        by_zone[one[0].state.zone].append(one)
    counts = run.report.of(COMMITMENTS)
    for zone, part in sorted(by_zone.items()):
        taken_in = partial(take_in_commitments, part, intake)
        result = write_part(run, taken_in, zones={zone})
        counts.created += result.created
        counts.updated += result.updated + result.described
        counts.unchanged += result.unchanged
        for uuid, reason, detail in result.skipped:
            run.report.skip(COMMITMENTS, uuid, reason, detail)


def _prune_commitments(run: ImportRun) -> None:
    if not run.prunes(COMMITMENTS):
        return
    listed = {record.commitment.uuid for record, _ in run.stash[COMMITMENTS]}
    if not _is_limes_believed(run, listed):
        return
    left_out = _zones_left_out(run, listed)
    unlisted: defaultdict[str, list[int]] = defaultdict(list)
    stored = Commitment.objects.exclude(zone__in=left_out).order_by("pk")
    for pk, uuid, zone in stored.values_list("pk", "commitment_uuid", "zone"):
        if uuid not in listed:
            unlisted[zone].append(pk)
    for zone, pks in sorted(unlisted.items()):
        removed, kept = write_part(run, partial(_remove_commitments, run, pks), zones={zone})
        run.report.of(COMMITMENTS).removed += removed
        for uuid in kept:
            run.report.skip(
                COMMITMENTS,
                uuid,
                "has_reservations",
                "not in the files, but it holds capacity: only its end releases it",
            )


def _remove_commitments(run: ImportRun, unlisted: Collection[int]) -> tuple[int, list[str]]:
    """Remove commitments that hold nothing; return how many, and the uuids of the others."""
    rows = Commitment.objects.filter(pk__in=unlisted).annotate(
        has_slots=Exists(Reservation.objects.filter(commitment=OuterRef("pk")))
    )
    locked = list(rows.order_by("pk").select_for_update(of=("self",)))
    doomed = [row for row in locked if not row.has_slots]
    pks = [row.pk for row in doomed]
    InstanceAssignment.objects.filter(commitment_id__in=pks).delete()
    Commitment.objects.filter(pk__in=pks).delete()
    CommitmentEvent.objects.bulk_create(
        (
            CommitmentEvent(
                commitment_uuid=row.commitment_uuid,
                actor=run.actor.name,
                request_id=run.request_id,
                action="commitment_removed",
                before=spec_record(row),
                reason="not in the imported files (--prune)",
            )
            for row in doomed
        ),
        batch_size=BATCH_ROWS,
    )
    Outbox.objects.bulk_create(
        (
            Outbox(topic="commitments", object_type="Commitment", object_id=row.commitment_uuid)
            for row in doomed
        ),
        batch_size=BATCH_ROWS,
    )
    return len(doomed), [row.commitment_uuid for row in locked if row.has_slots]


def _is_limes_believed(run: ImportRun, listed: Collection[str]) -> bool:
    """Return whether commitments that the files lack may go; those that are over may always."""
    stored = live_commitments(run.now).order_by().values_list("commitment_uuid", flat=True)
    kept = sum(uuid in listed for uuid in stored)
    return is_believed(run, section=COMMITMENTS, before=len(stored), now=kept)


def _zones_left_out(run: ImportRun, listed: Collection[str]) -> tuple[str, ...]:
    """Return the zones with hosts of whose live commitments the files lack all.

    When they list nothing at all, the size of the whole list decides.
    """
    if not listed:
        return ()
    stored, kept = Counter[str](), Counter[str]()
    live = live_commitments(run.now).order_by().values_list("zone", "commitment_uuid")
    for zone, uuid in live:
        stored[zone] += 1
        kept[zone] += uuid in listed
    counts = {zone: (count, kept[zone]) for zone, count in stored.items()}
    return zones_left_out(
        run, section=COMMITMENTS, counts=counts, zones=zones_of_reported_hosts(run)
    )


def _dump_commitments(options: DumpOptions) -> Iterator[Json]:
    try:
        known = ram_units_of_known_groups()
    except NotReady:
        known = {}
    ended = (CommitmentStatus.SUPERSEDED.value, CommitmentStatus.EXPIRED.value)
    rows = Commitment.objects.order_by("commitment_uuid")
    if not options.with_ended:
        rows = rows.exclude(state__in=ended).exclude(end_time__lte=database_now())
    for row in rows.iterator(chunk_size=2000):
        stored = StoredCommitment(
            state=stored_state(row),
            created_at=row.created_at,
            confirm_by=row.confirm_by,
            confirmed_at=row.confirmed_at,
            limes_id=row.limes_id,
            record=row.limes_record,
        )
        yield limes_record_of(
            stored, _taken_in_again(row, known), known.get(row.flavor_group_name, 1024)
        )


def _service_type() -> str:
    return str(settings.HEADROOM.liquid.limes_service_type)


def _taken_in_again(row: Commitment, known: Mapping[str, int]) -> Converted | None:
    if row.limes_record is None:
        return None
    record = _record_of(Node(row.limes_record, "database", COMMITMENTS, f".{row.pk}"))
    outcome = take_in(record, known, service_type=_service_type())
    return outcome if isinstance(outcome, Converted) else None


def _read_quotas(run: ImportRun) -> Callable[[Node], None]:
    quotas: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    run.stash[QUOTAS] = quotas
    unique = Unique("quota")

    def read(node: Node) -> None:
        project_id = node.text("project_id", max_length=ID_MAX)
        zone, resource_name = node.text("availability_zone"), node.text("resource_name")
        unique.check(node, (project_id, zone, resource_name))
        quota = node.integer("quota", low=-1, high=INT64_MAX >> 34)
        quotas[project_id, zone][resource_name] = quota

    return read


def _write_quotas(run: ImportRun) -> None:
    quotas: dict[tuple[str, str], dict[str, int]] = run.stash[QUOTAS]
    known = ram_units_of_known_groups()
    domains = dict(Domain.objects.values_list("openstack_id", "name"))
    projects = {
        openstack_id: (name, domain_id)
        for openstack_id, name, domain_id in Project.objects.values_list(
            "openstack_id", "name", "domain_id"
        )
    }
    rows = {
        (row.project_id, row.zone): row
        for row in ProjectQuota.objects.order_by("pk").select_for_update(of=("self",), no_key=True)
    }
    stored = len(rows)
    new, changed = [], []
    counts = run.report.of(QUOTAS)
    for key in sorted(quotas):
        project_name, domain_id = projects.get(key[0], ("", ""))
        wanted: dict[str, Any] = {
            "quota_by_resource": {
                name: _stored_quota(name, quota, known) for name, quota in quotas[key].items()
            },
            "project_name": project_name,
            "domain_id": domain_id,
            "domain_name": domains.get(domain_id, ""),
        }
        row = rows.pop(key, None)
        if row is None:
            new.append(ProjectQuota(project_id=key[0], zone=key[1], **wanted))
        elif any(getattr(row, name) != entry for name, entry in wanted.items()):
            for name, entry in wanted.items():
                setattr(row, name, entry)
            row.generation += 1
            changed.append(row)
        else:
            counts.unchanged += 1
    _save_quotas(new, changed)
    counts.created += len(new)
    counts.updated += len(changed)
    if run.prunes(QUOTAS) and is_believed(run, section=QUOTAS, before=stored, now=len(quotas)):
        ProjectQuota.objects.filter(pk__in=[row.pk for row in rows.values()]).delete()
        counts.removed += len(rows)


def _save_quotas(new: list[ProjectQuota], changed: list[ProjectQuota]) -> None:
    fields = ("quota_by_resource", "project_name", "domain_id", "domain_name", "generation")
    ProjectQuota.objects.bulk_create(new, batch_size=BATCH_ROWS)
    ProjectQuota.objects.bulk_update(changed, fields, batch_size=BATCH_ROWS)
    Outbox.objects.bulk_create(
        (
            Outbox(
                topic=QUOTA_TOPIC,
                object_type="project_quota",
                object_id=f"{row.project_id}/{row.zone}",
                payload={"quota_by_resource": row.quota_by_resource},
            )
            for row in (*new, *changed)
        ),
        batch_size=BATCH_ROWS,
    )


def _stored_quota(resource_name: str, quota: int, known: Mapping[str, int]) -> int:
    unit_mib = _ram_unit_of(resource_name, known)
    return quota if unit_mib is None else declared_units_to_gib(quota, unit_mib)


def _ram_unit_of(resource_name: str, known: Mapping[str, int]) -> int | None:
    try:
        return known.get(flavor_group_from_resource(resource_name))
    except InvalidResourceName:
        return None


def _dump_quotas(_: DumpOptions) -> Iterator[Json]:
    try:
        known = ram_units_of_known_groups()
    except NotReady:
        known = {}
    for row in ProjectQuota.objects.order_by("project_id", "zone").iterator(chunk_size=2000):
        for resource_name in sorted(row.quota_by_resource):
            quota = row.quota_by_resource[resource_name]
            unit_mib = _ram_unit_of(resource_name, known)
            yield {
                "project_id": row.project_id,
                "availability_zone": row.zone,
                "resource_name": resource_name,
                "quota": quota if unit_mib is None else gib_to_declared_units(quota, unit_mib),
            }


def _place(run: ImportRun) -> None:
    if not run.options.place:
        return
    run.progress.step_sized(count_due_commitments())
    report = repair_due_commitments(
        actor=run.actor, request_id=run.request_id, progress=run.progress.step_grown
    )
    counted = {name: count for name, count in asdict(report).items() if isinstance(count, int)}
    run.report.placement |= {name: count for name, count in counted.items() if count}
    if report.skipped:
        zones = ", ".join(report.skipped)
        run.report.notes.append(f"zones in use by others, placed later by the workers: {zones}")


def _accept_vm_lists(run: ImportRun) -> None:
    """Tell the looks at slots what an operator accepted: once is enough."""
    if run.options.accepts_shrink and run.prunes(SERVERS):
        accept_vm_lists()


def _verify_slots(run: ImportRun) -> None:
    """See where VMs and hosts of slots are now, at once instead of with the next beat."""
    if not run.options.place or run.is_still:
        return
    # At every slot, after files: whether their lists are believed is to be known here.
    run.progress.step_sized(len(zones_to_verify()))
    report = verify_slots(
        actor=run.actor,
        request_id=run.request_id,
        is_full=run.live is None,
        progress=run.progress.step_grown,
    )
    run.report.placement |= {f"slot VMs {name}": count for name, count in report.events.items()}
    run.report.refusals |= {
        f"slots of {zone}": f"{zone}: {reason}" for zone, reason in report.refused.items()
    }
