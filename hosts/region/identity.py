"""Sections ``about`` and ``identity`` (spec region-file)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from hosts.models import Domain, Project, Region
from hosts.region.node import ID_MAX, Json, Node
from hosts.region.prune import prune_rows
from hosts.region.registry import DumpOptions, Registry, Section, Shape, Step
from hosts.region.run import ImportRun, Unique
from hosts.region.staging import Merge, StagingTable, merge

ABOUT: Final = "about"
DOMAINS: Final = "identity.domains"
PROJECTS: Final = "identity.projects"
DOMAIN_COLUMNS: Final = ("openstack_id", "name", "is_enabled")
PROJECT_COLUMNS: Final = ("openstack_id", "name", "domain_id", "parent_id", "is_enabled")
ABOUT_LENGTHS: Final = {"region": 255, "taken_at": 64, "source": 10_000}


def register(registry: Registry) -> None:
    """Register the sections and steps of this module."""
    registry.add_section(
        Section(path=ABOUT, shape=Shape.MEMBERS, reader=_read_about, dumper=_dump_about)
    )
    registry.add_section(
        Section(path=DOMAINS, shape=Shape.LIST, reader=_read_domains, dumper=_dump_domains)
    )
    registry.add_section(
        Section(path=PROJECTS, shape=Shape.LIST, reader=_read_projects, dumper=_dump_projects)
    )
    registry.add_writer(Step(order=5, name="about", run=_write_about))
    registry.add_writer(Step(order=10, name="identity", run=_write_identity))
    registry.add_pruner(Step(order=10, name="identity", run=_prune_identity))


def _read_about(run: ImportRun) -> Callable[[Node], None]:
    about: dict[str, Json] = {}
    run.stash[ABOUT] = about

    def read(node: Node) -> None:
        for key, found in node.fields.items():
            if key in ABOUT_LENGTHS:
                text = node.text(key, default="", max_length=ABOUT_LENGTHS[key])
                if about.setdefault(key, text) != text:
                    run.report.notes.append(f"{node.file_name}: about.{key} differs; first kept")
            elif key == "versions":
                if found is not None and not isinstance(found, dict):
                    raise node.error(key, "must be an object")
                about["versions"] = {**node.payload(key), **about.get("versions", {})}

    return read


def _write_about(run: ImportRun) -> None:
    about = run.stash[ABOUT]
    if not about:
        return
    wanted = {
        "name": about.get("region", ""),
        "taken_at": about.get("taken_at", ""),
        "source": about.get("source", ""),
        "versions": about.get("versions", {}),
    }
    counts = run.report.of(ABOUT)
    existing = Region.objects.select_for_update().first()
    if existing is None:
        Region.objects.create(**wanted)
        counts.created += 1
    elif any(getattr(existing, name) != entry for name, entry in wanted.items()):
        Region.objects.filter(pk=existing.pk).update(**wanted)
        counts.updated += 1
    else:
        counts.unchanged += 1


def _dump_about(_: DumpOptions) -> Iterator[Json]:
    region = Region.objects.first()
    if region is not None:
        yield "region", region.name
        yield "source", region.source
        yield "taken_at", region.taken_at
        yield "versions", region.versions


def _read_domains(run: ImportRun) -> Callable[[Node], None]:
    stage = StagingTable(run, table="hosts_domain", columns=DOMAIN_COLUMNS)
    run.stash[DOMAINS] = stage
    unique = Unique("domain")

    def read(node: Node) -> None:
        domain_id = node.text("id", max_length=ID_MAX)
        unique.check(node, domain_id, "id")
        stage.add((domain_id, node.text("name"), node.boolean("enabled", default=True)))

    return read


def _read_projects(run: ImportRun) -> Callable[[Node], None]:
    stage = StagingTable(run, table="hosts_project", columns=PROJECT_COLUMNS)
    run.stash[PROJECTS] = stage
    unique = Unique("project")

    def read(node: Node) -> None:
        project_id = node.text("id", max_length=ID_MAX)
        unique.check(node, project_id, "id")
        stage.add(
            (
                project_id,
                node.text("name"),
                node.text("domain_id", max_length=ID_MAX),
                node.text("parent_id", default="", max_length=ID_MAX),
                node.boolean("enabled", default=True),
            )
        )

    return read


def _write_identity(run: ImportRun) -> None:
    for section, table, columns in (
        (DOMAINS, "hosts_domain", DOMAIN_COLUMNS),
        (PROJECTS, "hosts_project", PROJECT_COLUMNS),
    ):
        if section in run.sections_seen:
            merge(Merge(table=table, key="openstack_id", columns=columns), run.report.of(section))


def _prune_identity(run: ImportRun) -> None:
    for section, model in ((PROJECTS, Project), (DOMAINS, Domain)):
        if run.prunes(section):
            prune_rows(
                run,
                section=section,
                model=model,
                key="openstack_id",
                staged=f"stage_{model._meta.db_table}",  # noqa: SLF001 - Django's public name for it
            )


def _dump_domains(_: DumpOptions) -> Iterator[Json]:
    for domain in Domain.objects.order_by("openstack_id"):
        yield {"id": domain.openstack_id, "name": domain.name, "enabled": domain.is_enabled}


def _dump_projects(_: DumpOptions) -> Iterator[Json]:
    for project in Project.objects.order_by("openstack_id"):
        yield {
            "id": project.openstack_id,
            "name": project.name,
            "domain_id": project.domain_id,
            "parent_id": project.parent_id or None,
            "enabled": project.is_enabled,
        }
