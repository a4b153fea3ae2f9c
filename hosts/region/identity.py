"""Sections ``about`` and ``identity`` (spec region-file)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from django.conf import settings

from hosts.models import Domain, Project, Region
from hosts.region.about import CREATED, UNCHANGED, UPDATED, keep_region
from hosts.region.node import ID_MAX, Json, Node
from hosts.region.registry import DumpOptions, Phase, RegionSection, Shape, Step, registry
from hosts.region.run import ImportRun
from hosts.region.tables import TableSection

ABOUT: Final = "about"
DOMAINS: Final = "identity.domains"
PROJECTS: Final = "identity.projects"
ABOUT_LENGTHS: Final = {"region": 255, "taken_at": 64, "source": 10_000}


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
    about = run.stash.get(ABOUT)
    if not about:
        return
    wanted = {
        "name": about.get("region", ""),
        "taken_at": about.get("taken_at", ""),
        "source": about.get("source", ""),
        "versions": about.get("versions", {}),
    }
    if settings.HEADROOM.feed.cloud:  # which alone tells from when VMs are
        del wanted["taken_at"]
    counts, done = run.report.of(ABOUT), keep_region(wanted)
    counts.created += done == CREATED
    counts.updated += done == UPDATED
    counts.unchanged += done == UNCHANGED


def _dump_about(_: DumpOptions) -> Iterator[Json]:
    region = Region.objects.first()
    if region is not None:
        yield "region", region.name
        yield "source", region.source
        yield "taken_at", region.taken_at
        yield "versions", region.versions


def _domain_row(node: Node) -> tuple[object, ...]:
    return (
        node.text("id", max_length=ID_MAX),
        node.text("name"),
        node.boolean("enabled", default=True),
    )


def _domain_element(domain: Domain) -> Json:
    return {"id": domain.openstack_id, "name": domain.name, "enabled": domain.is_enabled}


def _project_row(node: Node) -> tuple[object, ...]:
    return (
        node.text("id", max_length=ID_MAX),
        node.text("name"),
        node.text("domain_id", max_length=ID_MAX),
        node.text("parent_id", default="", max_length=ID_MAX),
        node.boolean("enabled", default=True),
    )


def _project_element(project: Project) -> Json:
    return {
        "id": project.openstack_id,
        "name": project.name,
        "domain_id": project.domain_id,
        "parent_id": project.parent_id or None,
        "enabled": project.is_enabled,
    }


DOMAIN_TABLE: Final = TableSection(
    path=DOMAINS,
    order=10,
    model=Domain,
    columns=("openstack_id", "name", "is_enabled"),
    unique={"id": "domain"},
    row=_domain_row,
    element=_domain_element,
)
PROJECT_TABLE: Final = TableSection(
    path=PROJECTS,
    order=11,
    model=Project,
    columns=("openstack_id", "name", "domain_id", "parent_id", "is_enabled"),
    unique={"id": "project"},
    row=_project_row,
    element=_project_element,
)


def register() -> None:
    """Register the sections and steps of this module."""
    registry.add(
        RegionSection(path=ABOUT, shape=Shape.MEMBERS, reader=_read_about, dumper=_dump_about),
        Step(Phase.WRITE, 5, "about", _write_about),
        *DOMAIN_TABLE.parts(),
        *PROJECT_TABLE.parts(),
    )
