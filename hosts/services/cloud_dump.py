"""Writing a live cloud as a region file (spec region-file, ``dump_region``)."""

from __future__ import annotations

from datetime import datetime
from typing import BinaryIO

from hosts.clients.listing import CloudReader
from hosts.feed.lists import LISTS, PARTS_OF_PROVIDERS, bare_providers, with_parts
from hosts.region.dump import RegionFileWriter
from hosts.region.inventory import PROVIDERS
from hosts.region.registry import Shape


def dump_cloud(stream: BinaryIO, cloud: CloudReader, *, name: str, now: datetime) -> None:
    """Write what a cloud's APIs return. Bodies are kept as they are.

    Args:
        stream: Where to.
        name: Its name, for ``about``.
        now: The present, for ``about``.

    Raises:
        CloudUnreachable: An API does not answer; what was written is not complete.
    """
    writer = RegionFileWriter(stream)
    about = {"region": name, "source": "dump_region", "taken_at": now.isoformat(), "versions": {}}
    writer.write("about", Shape.MEMBERS, iter(about.items()))
    for each in LISTS:
        elements = each.read(cloud)
        if each.section == PROVIDERS:
            elements = with_parts(cloud, bare_providers(cloud), PARTS_OF_PROVIDERS)
        writer.write(each.section, Shape.LIST, elements)
    writer.finish()
