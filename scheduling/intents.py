"""What a request is for, and what else its hints say (spec scheduling, 2.5, 2.7, 2.8, 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

INTENT_HINT = "_nova_check_type"
DOMAIN_HINT = "domain_name"
SOURCE_HOST_HINT = "source_host"
RESOURCE_GROUP_HINT = "_cortex_resource_group"
_IMAGE_TYPE_KEYS = ("img_hv_type", "hypervisor_type")
_IMAGE_TYPES = frozenset({"vmware", "baremetal", "kvm"})


class Intent(StrEnum):
    """What a placement is for; the text is the label of metrics (spec scheduling, 2.7)."""

    CREATE = "create"
    REBUILD = "rebuild"
    RESIZE = "resize"
    LIVE_MIGRATION = "live_migration"
    EVACUATE = "evacuate"
    RESERVE_FOR_FAILOVER = "reserve_for_failover"
    REUSE_FAILOVER_RESERVATION = "reuse_failover_reservation"
    RESERVE_FOR_COMMITTED_RESOURCE = "reserve_for_committed_resource"
    CAPACITY_PROBE = "capacity_probe"


_INTENT_OF_HINT: Mapping[str, Intent] = {
    **{intent.value: intent for intent in Intent if intent is not Intent.LIVE_MIGRATION},
    "live_migrate": Intent.LIVE_MIGRATION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """Call-time options of a run.

    Attributes:
        read_only: The run changes no shared state.
        assume_empty_hosts: Ignore running VMs.
        lock_reservations: Never release committed slots to the requester.
        ignored_reservation_types: Kinds of reservations that block nothing.
        max_candidates: Keep only the best so many hosts; 0 keeps all.
        skip_history: Do not record the decision.
        skip_inflight: Do not create in-flight blocks for the candidates.
        skip_committed_resource_tracking: Do not write the VM into a slot.

    Source: spec scheduling, 3.
    """

    read_only: bool = False
    assume_empty_hosts: bool = False
    lock_reservations: bool = False
    ignored_reservation_types: frozenset[str] = frozenset()
    max_candidates: int = 0
    skip_history: bool = False
    skip_inflight: bool = False
    skip_committed_resource_tracking: bool = False

    def problem(self) -> str:
        """Return what is wrong with the options, empty if nothing is.

        A read-only run must skip history, in-flight blocks and tracking, checked in this order.
        """
        if self.max_candidates < 0:
            return "max_candidates must not be negative"
        if self.read_only:
            for flag in ("skip_history", "skip_inflight", "skip_committed_resource_tracking"):
                if not getattr(self, flag):
                    return f"read_only requires {flag}"
        return ""


def hint_text(hints: Mapping[str, object] | None, key: str) -> str | None:
    """Return a scheduler hint: a text, or the first element of a list if it is a text.

    Source: spec scheduling, 2.7.
    """
    hint = (hints or {}).get(key)
    if isinstance(hint, list | tuple):
        hint = hint[0] if hint else None
    return hint if isinstance(hint, str) else None


def intent_from_hints(hints: Mapping[str, object] | None) -> Intent | None:
    """Return what a request is for; None if the hints do not say.

    Source: spec scheduling, 2.7.
    """
    text = hint_text(hints, INTENT_HINT)
    return None if text is None else _INTENT_OF_HINT.get(text, Intent.CREATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedVM:
    """A VM that is on a host, as far as its intent may be inferred from it."""

    flavor_name: str
    host_name: str
    is_host_lost: bool


def inferred_intent(vm: PlacedVM | None, flavor_name: str) -> tuple[Intent, str]:
    """Return what a request that does not say it is for, and why, as the end of a sentence.

    Args:
        vm: The VM where it is known to be; None for one that is on no host.
        flavor_name: The flavor that is asked for.
    """
    if vm is None:
        return Intent.CREATE, "no host carries the VM"
    if vm.is_host_lost:
        return Intent.EVACUATE, f"its host {vm.host_name} is down or fenced"
    if vm.flavor_name != flavor_name:
        return Intent.RESIZE, f"it is of flavor {vm.flavor_name} on {vm.host_name}"
    return Intent.LIVE_MIGRATION, f"it is on {vm.host_name}, which is not lost"


def image_hypervisor_type(properties: Mapping[str, object] | None) -> str | None:
    """Return ``vmware``, ``baremetal`` or ``kvm``, None if the image does not say.

    Source: spec scheduling, 2.8.
    """
    for key in _IMAGE_TYPE_KEYS:
        if properties is not None and key in properties:
            word = properties[key]
            if isinstance(word, str) and word.lower() in _IMAGE_TYPES:
                return word.lower()
            return None
    return None
