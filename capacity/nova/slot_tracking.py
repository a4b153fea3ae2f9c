"""Telling commitments of placements and refusals (spec scheduling, 12; commitments, 17).

Whatever goes wrong there is logged and classed ``error``; a placement never fails for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

import structlog
from django.db import transaction

from capacity.groups.flavor_groups import FlavorGroupDef
from capacity.groups.reading import load_group_definitions
from capacity.hooks import CommitmentTracker, TrackedPlacement, hooks
from core.process_cache import Fingerprint
from journal.errors import NotReady
from scheduling.request import HARDWARE_VERSION_KEY, PlacementRequest

log = structlog.get_logger(__name__)

ERROR = "error"
_NO_GROUPS: Mapping[str, FlavorGroupDef] = MappingProxyType({})
_index: tuple[Mapping[str, FlavorGroupDef], Mapping[str, str]] = (_NO_GROUPS, {})


def resolved_group(request: PlacementRequest, asked: Fingerprint | None = None) -> str | None:
    """Return the flavor group of a request: the one place where that is decided.

    By the flavor's name, else by ``quota:hw_version`` when a group has that name.

    Args:
        asked: What the rows of :data:`capacity.groups.reading.GROUPS` were just said to be.

    Returns:
        The group; empty when the flavor is in none; None when groups are not known yet.

    Source: spec scheduling, 15.10.
    """
    if request.flavor_group:
        return request.flavor_group
    try:
        definitions = load_group_definitions(asked=asked)
    except NotReady:
        return None
    group = _group_by_flavor(definitions).get(request.flavor_name)
    if group is not None:
        return group
    alias = request.extra_specs.get(HARDWARE_VERSION_KEY, "")
    return alias if alias in definitions else ""


def is_tracked(vm: TrackedPlacement, *, is_group_known: bool) -> bool:
    """Return whether there is anything to ask or tell commitments of a VM."""
    return bool(vm.group) or not is_group_known


def track_placement(
    vm: TrackedPlacement, *, is_group_known: bool, candidates: Sequence[str], now: datetime
) -> str:
    """Book a placed VM into a slot of its project and return the class; empty for pay-as-you-go.

    Args:
        is_group_known: Whether flavor groups could be looked up.
        candidates: Hosts of the answer, the target first.
        now: When it was placed.
    """
    return _asked(
        vm,
        is_group_known=is_group_known,
        ask=lambda tracker: tracker.placed(vm, candidates=candidates, now=now),
    )


def track_refusal(
    vm: TrackedPlacement, *, is_group_known: bool, input_hosts: Collection[str] | None
) -> str:
    """Return why the project's commitments did not help; empty for pay-as-you-go.

    Args:
        is_group_known: Whether flavor groups could be looked up.
        input_hosts: Hosts after candidate gathering; None means all.
    """
    return _asked(
        vm,
        is_group_known=is_group_known,
        ask=lambda tracker: tracker.refused(vm, input_hosts=input_hosts),
    )


def _asked(
    vm: TrackedPlacement, *, is_group_known: bool, ask: Callable[[CommitmentTracker], str]
) -> str:
    if not is_tracked(vm, is_group_known=is_group_known):
        return ""
    if not is_group_known:
        return ERROR
    try:
        with transaction.atomic():
            return ask(hooks.commitment_tracker)
    except Exception:  # the VM is placed whatever an app above runs into: it is told as ERROR
        log.exception("commitment_tracking_failed", vm_uuid=vm.vm_uuid, group=vm.group)
        return ERROR


def _group_by_flavor(definitions: Mapping[str, FlavorGroupDef]) -> Mapping[str, str]:
    global _index  # noqa: PLW0603 - one index per process, replaced whole
    known, index = _index
    if known is not definitions:
        index = {
            flavor.name: name for name, group in definitions.items() for flavor in group.flavors
        }
        _index = (definitions, index)
    return index
