"""Flavors, server groups and images of a region file (spec region-file)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from hosts.domain.operating_system import os_type_of_image
from hosts.models import Flavor, Image, ServerGroup
from hosts.region.node import ID_MAX, INT64_MAX, TEXT_MAX, Json, Node, plain_json
from hosts.region.prune import is_list_believed, prune_rows
from hosts.region.registry import DumpOptions, Registry, Section, Shape, Step
from hosts.region.run import ImportRun, Unique
from hosts.region.staging import Merge, StagingTable, as_json, merge
from journal.statements import execute, fetch_rows

MIB: Final = 1 << 20
MAX_MEMORY_MIB: Final = INT64_MAX // MIB
FLAVORS: Final = "compute.flavors"
SERVER_GROUPS: Final = "compute.server_groups"
IMAGES: Final = "image.images"
EPHEMERAL: Final = "OS-FLV-EXT-DATA:ephemeral"
IS_PUBLIC: Final = "os-flavor-access:is_public"
FLAVOR_COLUMNS: Final = (
    "openstack_id",
    "name",
    "vcpus",
    "memory_bytes",
    "disk_gib",
    "ephemeral_gib",
    "is_public",
    "extra_specs",
)
IMAGE_COLUMNS: Final = ("openstack_id", "name", "os_type", "properties")
SERVER_GROUP_COLUMNS: Final = ("openstack_id", "name", "policy", "rules", "members", "project_id")
_OS_PROPERTIES: Final = ("vmware_ostype", "os_distro")
_OS_TAG: Final = re.compile(r"ostype:.+")


def register(registry: Registry) -> None:
    """Register the sections and steps of this module."""
    for path, reader, dumper in (
        (FLAVORS, _read_flavors, _dump_flavors),
        (IMAGES, _read_images, _dump_images),
        (SERVER_GROUPS, _read_server_groups, _dump_server_groups),
    ):
        registry.add_section(Section(path=path, shape=Shape.LIST, reader=reader, dumper=dumper))
    registry.add_writer(Step(order=20, name="flavors", run=_write_flavors))
    registry.add_pruner(Step(order=20, name="flavors", run=_prune_flavors))
    registry.add_writer(Step(order=30, name="images", run=_write_images))
    registry.add_pruner(Step(order=30, name="images", run=_prune_images))
    registry.add_writer(Step(order=55, name="server_groups", run=_write_server_groups))
    registry.add_pruner(Step(order=55, name="server_groups", run=_prune_server_groups))


def doomed_flavor_ids(run: ImportRun) -> list[int]:
    """Return ids of flavor rows that a pruning run is about to remove."""
    if not run.prunes(FLAVORS) or not is_list_believed(
        run, section=FLAVORS, model=Flavor, staged="stage_hosts_flavor"
    ):
        return []
    found = fetch_rows(
        "SELECT id FROM hosts_flavor t WHERE NOT EXISTS (SELECT 1 FROM stage_hosts_flavor s "
        "WHERE s.openstack_id = t.openstack_id) ORDER BY id"
    )
    return [row[0] for row in found]


def _read_flavors(run: ImportRun) -> Callable[[Node], None]:
    stage = StagingTable(run, table="hosts_flavor", columns=FLAVOR_COLUMNS)
    run.stash[FLAVORS] = stage
    ids, names = Unique("flavor"), Unique("flavor name")

    def read(node: Node) -> None:
        flavor_id, name = node.text("id"), node.text("name")
        ids.check(node, flavor_id, "id")
        names.check(node, name, "name")
        stage.add(
            (
                flavor_id,
                name,
                node.integer("vcpus"),
                node.integer("ram", high=MAX_MEMORY_MIB) * MIB,
                node.integer("disk"),
                node.integer(EPHEMERAL, default=0),
                node.boolean(IS_PUBLIC, default=True),
                as_json(node.text_map("extra_specs")),
            )
        )

    return read


def _write_flavors(run: ImportRun) -> None:
    if FLAVORS not in run.sections_seen:
        return
    execute(
        """
            UPDATE hosts_flavor t SET openstack_id = s.openstack_id
            FROM stage_hosts_flavor s
            WHERE t.name = s.name AND t.openstack_id <> s.openstack_id
              AND NOT EXISTS (
                  SELECT 1 FROM stage_hosts_flavor o WHERE o.openstack_id = t.openstack_id)
              AND NOT EXISTS (SELECT 1 FROM hosts_flavor o WHERE o.openstack_id = s.openstack_id)
            """
    )
    execute(
        """
            UPDATE hosts_flavor t SET name = left(t.name, 200) || '~' || t.id
            FROM stage_hosts_flavor s
            WHERE t.name = s.name AND t.openstack_id <> s.openstack_id
            """
    )
    merge(
        Merge(table="hosts_flavor", key="openstack_id", columns=FLAVOR_COLUMNS),
        run.report.of(FLAVORS),
    )


def _prune_flavors(run: ImportRun) -> None:
    if run.prunes(FLAVORS):
        prune_rows(
            run, section=FLAVORS, model=Flavor, key="openstack_id", staged="stage_hosts_flavor"
        )


def _dump_flavors(_: DumpOptions) -> Iterator[Json]:
    for flavor in Flavor.objects.order_by("openstack_id"):
        yield {
            "id": flavor.openstack_id,
            "name": flavor.name,
            "vcpus": flavor.vcpus,
            "ram": flavor.memory_bytes // MIB,
            "disk": flavor.disk_gib,
            EPHEMERAL: flavor.ephemeral_gib,
            IS_PUBLIC: flavor.is_public,
            "extra_specs": flavor.extra_specs,
        }


def _read_images(run: ImportRun) -> Callable[[Node], None]:
    stage = StagingTable(run, table="hosts_image", columns=IMAGE_COLUMNS)
    run.stash[IMAGES] = stage
    unique = Unique("image")

    def read(node: Node) -> None:
        image_id = node.text("id", max_length=ID_MAX)
        unique.check(node, image_id, "id")
        properties: dict[str, Json] = {
            key: node.text(key, default="") for key in _OS_PROPERTIES if node.has(key)
        }
        tags = [tag for tag in node.texts("tags", required=False) if _OS_TAG.fullmatch(tag)]
        if tags:
            properties["tags"] = tags
        name = node.text("name", default="", max_length=TEXT_MAX)
        stage.add((image_id, name, os_type_of_image(properties), as_json(properties)))

    return read


def _write_images(run: ImportRun) -> None:
    if IMAGES in run.sections_seen:
        merge(
            Merge(table="hosts_image", key="openstack_id", columns=IMAGE_COLUMNS),
            run.report.of(IMAGES),
        )


def _prune_images(run: ImportRun) -> None:
    if run.prunes(IMAGES):
        prune_rows(run, section=IMAGES, model=Image, key="openstack_id", staged="stage_hosts_image")


def _dump_images(_: DumpOptions) -> Iterator[Json]:
    for image in Image.objects.order_by("openstack_id"):
        yield {"id": image.openstack_id, "name": image.name, **image.properties}


def _read_server_groups(run: ImportRun) -> Callable[[Node], None]:
    stage = StagingTable(run, table="hosts_servergroup", columns=SERVER_GROUP_COLUMNS)
    run.stash[SERVER_GROUPS] = stage
    unique = Unique("server group")

    def read(node: Node) -> None:
        group_id = node.text("id", max_length=ID_MAX)
        unique.check(node, group_id, "id")
        policies = node.texts("policies", required=False, max_length=ID_MAX)
        policy = node.text("policy", default="", max_length=ID_MAX)
        stage.add(
            (
                group_id,
                node.text("name", default=""),
                policy or next(iter(policies), ""),
                as_json(plain_json(node.child("rules", required=False).fields)),
                node.texts("members", max_length=ID_MAX),
                node.text("project_id", default="", max_length=ID_MAX),
            )
        )

    return read


def _write_server_groups(run: ImportRun) -> None:
    if SERVER_GROUPS in run.sections_seen:
        merge(
            Merge(table="hosts_servergroup", key="openstack_id", columns=SERVER_GROUP_COLUMNS),
            run.report.of(SERVER_GROUPS),
        )


def _prune_server_groups(run: ImportRun) -> None:
    if run.prunes(SERVER_GROUPS):
        prune_rows(
            run,
            section=SERVER_GROUPS,
            model=ServerGroup,
            key="openstack_id",
            staged="stage_hosts_servergroup",
        )


def _dump_server_groups(_: DumpOptions) -> Iterator[Json]:
    for group in ServerGroup.objects.order_by("openstack_id"):
        yield {
            "id": group.openstack_id,
            "name": group.name,
            "policy": group.policy,
            "rules": group.rules,
            "members": group.members,
            "project_id": group.project_id,
        }
