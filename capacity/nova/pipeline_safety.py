"""What stored pipelines lack that slots and VMs need to be safe (spec scheduling, 9.1).

Pipelines that nobody edited follow the product; those that somebody did stay as they are, so what
the product has added since, or what was taken out, is told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from scheduling.engine import SLOT_PIPELINE
from scheduling.filters.state import filter_takes_slots
from scheduling.pipelines import PipelineSpec
from scheduling.shipped_pipelines import SHIPPED

SLOT_FILTERS = tuple(step.name for step in SLOT_PIPELINE.filters if step is not filter_takes_slots)
"""Names of the filters without which a slot may be held where its project's VM may not run."""

VM_PIPELINES = ("kvm-general-purpose-load-balancing", "kvm-hana-bin-packing")
"""The pipelines by which VMs on KVM are judged; that of slots has their filters as shipped."""


def pipeline_warnings(
    specs: Iterable[PipelineSpec], judging_slots: Collection[str], *, judges_all: bool
) -> Mapping[str, tuple[str, ...]]:
    """Return what is unsafe about pipelines, by name; those of which nothing is are left out.

    Args:
        specs: Definitions as stored.
        judging_slots: Names of those that the operator chose for slots.
        judges_all: Whether slots of every flavor group have a chosen one.
    """
    found: dict[str, tuple[str, ...]] = {}
    for spec in specs:
        lines = [*_lost(spec), *(_open_to_slots(spec) if spec.name in judging_slots else ())]
        if spec.name in VM_PIPELINES and not judges_all:
            lines += _unknown_to_slots(spec)
        if lines:
            found[spec.name] = tuple(lines)
    return found


def _lost(spec: PipelineSpec) -> list[str]:
    shipped = SHIPPED.get(spec.name)
    lost = _missing((step.name for step in shipped.filters), spec) if shipped is not None else ""
    return [f"it was edited and lacks filters that it is shipped with: {lost}"] if lost else []


def _open_to_slots(spec: PipelineSpec) -> list[str]:
    lost = _missing(SLOT_FILTERS, spec)
    return [f"it judges slots and lacks filters of VMs: {lost}"] if lost else []


def _unknown_to_slots(spec: PipelineSpec) -> list[str]:
    """Say which filters an edit has added or changed: slots of other pipelines do not know them."""
    shipped = SHIPPED[spec.name].filters
    known = [(step.name, step.params) for step in shipped]
    own = sorted(step.name for step in spec.filters if (step.name, step.params) not in known)
    advice = "choose it for them with HEADROOM_SLOTS__GROUP_PIPELINES"
    return [f"slots do not pass its own filters ({', '.join(own)}): {advice}"] if own else []


def _missing(names: Iterable[str], spec: PipelineSpec) -> str:
    own = {step.name for step in spec.filters}
    return ", ".join(name for name in names if name not in own)
