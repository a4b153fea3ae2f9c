"""Writing a live cloud as a region file (spec region-file, ``dump_region``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, BinaryIO, Final

from hosts.clients.cloud import (
    COMPUTE,
    IDENTITY,
    IMAGE,
    LIMES,
    PLACEMENT,
    CloudReader,
    CloudUnreachable,
    listed,
    pages,
    pages_by_offset,
)
from hosts.region.dump import RegionFileWriter
from hosts.region.registry import Shape

WORKERS: Final = 8
SUB_RESOURCES: Final = ("inventories", "traits", "aggregates", "usages", "allocations")

Json = Any  # bodies keep the APIs' own shapes


def dump_cloud(stream: BinaryIO, cloud: CloudReader, *, name: str, now: datetime) -> None:
    """Write what a cloud's APIs return. Bodies are kept as they are.

    Args:
        stream: Where to.
        cloud: The cloud.
        name: Its name, for ``about``.
        now: The present, for ``about``.

    Raises:
        CloudUnreachable: An API does not answer; what was written is not complete.
    """
    projects = list(_identity(cloud, "projects"))
    writer = RegionFileWriter(stream)
    about = {"region": name, "source": "dump_region", "taken_at": now.isoformat(), "versions": {}}
    writer.write("about", Shape.MEMBERS, iter(about.items()))
    for path, elements in (
        ("identity.domains", _identity(cloud, "domains")),
        ("identity.projects", iter(projects)),
        ("compute.flavors", pages(cloud, COMPUTE, "/flavors/detail?is_public=None", "flavors")),
        ("compute.hypervisors", pages(cloud, COMPUTE, "/os-hypervisors/detail", "hypervisors")),
        ("compute.services", _whole(cloud, COMPUTE, "/os-services", "services")),
        ("compute.aggregates", _whole(cloud, COMPUTE, "/os-aggregates", "aggregates")),
        ("compute.servers", pages(cloud, COMPUTE, "/servers/detail?all_tenants=1", "servers")),
        ("compute.server_groups", _server_groups(cloud)),
        ("image.images", pages(cloud, IMAGE, "/images", "images")),
        ("placement.resource_providers", _providers(cloud)),
        ("limes.commitments", _commitments(cloud, projects)),
    ):
        writer.write(path, Shape.LIST, elements)
    writer.finish()


def _identity(cloud: CloudReader, kind: str) -> Iterator[Json]:
    path = f"/{kind}"
    asked: set[str] = set()
    while path:
        if path in asked:
            raise CloudUnreachable(
                f"{IDENTITY} {path}: this page is said to follow itself",
                service=IDENTITY,
                path=path,
            )
        asked.add(path)
        found, body = listed(cloud, IDENTITY, path, kind)
        yield from found
        path = (body.get("links") or {}).get("next") or ""
    if body.get("truncated"):
        raise CloudUnreachable(
            f"{IDENTITY} /{kind}: Keystone cut the list short (its setting list_limit)",
            service=IDENTITY,
            path=f"/{kind}",
        )


def _whole(cloud: CloudReader, service: str, path: str, key: str) -> Iterator[Json]:
    yield from listed(cloud, service, path, key)[0]


def _server_groups(cloud: CloudReader) -> Iterator[Json]:
    path = "/os-server-groups?all_projects=True"
    yield from pages_by_offset(cloud, COMPUTE, path, "server_groups")


def _providers(cloud: CloudReader) -> Iterator[Json]:
    def complete(provider: Json) -> Json:
        root = f"/resource_providers/{provider['uuid']}"
        parts = {part: cloud.get(PLACEMENT, f"{root}/{part}") for part in SUB_RESOURCES}
        return {**provider, **{part: body for part, body in parts.items() if body is not None}}

    found = _whole(cloud, PLACEMENT, "/resource_providers", "resource_providers")
    yield from _in_parallel(complete, found)


def _commitments(cloud: CloudReader, projects: list[Json]) -> Iterator[Json]:
    if not cloud.has(LIMES):
        return

    def read(project: Json) -> list[Json]:
        path = f"/domains/{project['domain_id']}/projects/{project['id']}/commitments"
        owner = {"project_id": project["id"], "domain_id": project["domain_id"]}
        # 404: Limes has not discovered the project yet, so it has no commitments.
        return [
            {**found, **owner} for found in (cloud.get(LIMES, path) or {}).get("commitments", [])
        ]

    for found in _in_parallel(read, projects):
        yield from found


def _in_parallel(read: Callable[[Json], Json], elements: Iterable[Json]) -> Iterator[Json]:
    with ThreadPoolExecutor(max_workers=WORKERS) as pool:
        yield from pool.map(read, elements)
