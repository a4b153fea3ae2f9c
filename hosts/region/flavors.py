"""Flavors, server groups and images of a region file (spec region-file)."""

from __future__ import annotations

import re
from typing import Final

from hosts.domain.capacity import MIB
from hosts.domain.operating_system import os_type_of_image
from hosts.models import Flavor, Image, ServerGroup
from hosts.region.node import ID_MAX, INT64_MAX, TEXT_MAX, Json, Node, plain_json
from hosts.region.prune import is_list_believed
from hosts.region.registry import registry
from hosts.region.run import ImportRun
from hosts.region.staging import as_json
from hosts.region.tables import TableSection
from journal.statements import execute, fetch_rows

MAX_MEMORY_MIB: Final = INT64_MAX // MIB
FLAVORS: Final = "compute.flavors"
IMAGES: Final = "image.images"
SERVER_GROUPS: Final = "compute.server_groups"
EPHEMERAL: Final = "OS-FLV-EXT-DATA:ephemeral"
IS_PUBLIC: Final = "os-flavor-access:is_public"
_OS_PROPERTIES: Final = ("vmware_ostype", "os_distro")
_OS_TAG: Final = re.compile(r"ostype:.+")


def doomed_flavor_ids(run: ImportRun) -> list[int]:
    """Return ids of flavor rows that a pruning run is about to remove."""
    if not run.prunes(FLAVORS) or not is_list_believed(run, section=FLAVORS, model=Flavor):
        return []
    found = fetch_rows(
        "SELECT openstack_id, id FROM hosts_flavor t WHERE NOT EXISTS (SELECT 1 FROM "
        "stage_hosts_flavor s WHERE s.openstack_id = t.openstack_id) ORDER BY id"
    )
    ids: dict[str, int] = dict(found)
    return [ids[flavor] for flavor in run.gone(FLAVORS, list(ids))]


def _flavor_row(node: Node) -> tuple[object, ...]:
    return (
        node.text("id"),
        node.text("name"),
        node.integer("vcpus"),
        node.integer("ram", high=MAX_MEMORY_MIB) * MIB,
        node.integer("disk"),
        node.integer(EPHEMERAL, default=0),
        node.boolean(IS_PUBLIC, default=True),
        as_json(node.text_map("extra_specs")),
    )


def _make_way_for_flavors() -> None:
    """Give a flavor of the same name its new id, or another name where the id is taken."""
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


def _flavor_element(flavor: Flavor) -> Json:
    return {
        "id": flavor.openstack_id,
        "name": flavor.name,
        "vcpus": flavor.vcpus,
        "ram": flavor.memory_bytes // MIB,
        "disk": flavor.disk_gib,
        EPHEMERAL: flavor.ephemeral_gib,
        IS_PUBLIC: flavor.is_public,
        "extra_specs": flavor.extra_specs,
    }


def _image_row(node: Node) -> tuple[object, ...]:
    properties: dict[str, Json] = {
        key: node.text(key, default="") for key in _OS_PROPERTIES if node.has(key)
    }
    tags = [tag for tag in node.texts("tags", required=False) if _OS_TAG.fullmatch(tag)]
    if tags:
        properties["tags"] = tags
    return (
        node.text("id", max_length=ID_MAX),
        node.text("name", default="", max_length=TEXT_MAX),
        os_type_of_image(properties),
        as_json(properties),
    )


def _image_element(image: Image) -> Json:
    return {"id": image.openstack_id, "name": image.name, **image.properties}


def _server_group_row(node: Node) -> tuple[object, ...]:
    policies = node.texts("policies", required=False, max_length=ID_MAX)
    policy = node.text("policy", default="", max_length=ID_MAX)
    return (
        node.text("id", max_length=ID_MAX),
        node.text("name", default=""),
        policy or next(iter(policies), ""),
        as_json(plain_json(node.child("rules", required=False).fields)),
        node.texts("members", max_length=ID_MAX),
        node.text("project_id", default="", max_length=ID_MAX),
    )


def _server_group_element(group: ServerGroup) -> Json:
    return {
        "id": group.openstack_id,
        "name": group.name,
        "policy": group.policy,
        "rules": group.rules,
        "members": group.members,
        "project_id": group.project_id,
    }


FLAVOR_TABLE: Final = TableSection(
    path=FLAVORS,
    order=20,
    model=Flavor,
    columns=(
        "openstack_id",
        "name",
        "vcpus",
        "memory_bytes",
        "disk_gib",
        "ephemeral_gib",
        "is_public",
        "extra_specs",
    ),
    unique={"id": "flavor", "name": "flavor name"},
    row=_flavor_row,
    element=_flavor_element,
    before_write=_make_way_for_flavors,
)
IMAGE_TABLE: Final = TableSection(
    path=IMAGES,
    order=30,
    model=Image,
    columns=("openstack_id", "name", "os_type", "properties"),
    unique={"id": "image"},
    row=_image_row,
    element=_image_element,
)
SERVER_GROUP_TABLE: Final = TableSection(
    path=SERVER_GROUPS,
    order=55,
    model=ServerGroup,
    columns=("openstack_id", "name", "policy", "rules", "members", "project_id"),
    unique={"id": "server group"},
    row=_server_group_row,
    element=_server_group_element,
)


def register() -> None:
    """Register the sections and steps of this module."""
    registry.add(*FLAVOR_TABLE.parts(), *IMAGE_TABLE.parts(), *SERVER_GROUP_TABLE.parts())
