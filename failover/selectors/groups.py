"""Largest flavors of flavor groups (spec failover, 9.2 step 6, 12.2)."""

from __future__ import annotations

import structlog

from capacity.groups.reading import load_group_definitions
from failover.domain.sizing import GroupFlavor
from journal.errors import NotReady

log = structlog.get_logger(__name__)


def largest_flavors() -> dict[str, GroupFlavor]:
    """Return flavor name -> largest flavor of its group; empty while groups are not known."""
    try:
        definitions = load_group_definitions()
    except NotReady as not_ready:
        log.warning("failover_groups_not_ready", message=not_ready.message)
        return {}
    largest_of: dict[str, GroupFlavor] = {}
    for name, group in definitions.items():
        largest = max(group.flavors, key=lambda flavor: (flavor.memory_bytes, flavor.vcpus))
        chosen = GroupFlavor(
            group=name,
            flavor_name=largest.name,
            memory_bytes=largest.memory_bytes,
            vcpus=largest.vcpus,
        )
        for flavor in group.flavors:
            largest_of.setdefault(flavor.name, chosen)
    return largest_of
