"""Filters by what a host can do (spec scheduling, 7.5 - 7.7, 7.9, 7.14, 7.18)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

import numpy as np

from scheduling.columns import (
    BoolColumn,
    Int16Column,
    UInt64Column,
    bit_words,
    normalized_hypervisor_type,
)
from scheduling.filters.base import (
    NO_IMAGE,
    Filter,
    StepError,
    StepEvent,
    everything,
    listed,
    nothing,
)
from scheduling.filters.operators import is_operator, is_unreadable, satisfies
from scheduling.free import FreeColumns
from scheduling.intents import Intent, image_hypervisor_type
from scheduling.request import HYPERVISOR_TYPE_KEY, PlacementRequest, traits_from_extra_specs
from scheduling.table import HostTable

ACCELERATOR_TRAIT = "COMPUTE_ACCELERATORS"
PACKED_VIRTQUEUE_TRAIT = "COMPUTE_NET_VIRTIO_PACKED"
_CAPABILITY_PREFIX = "capabilities:"
_ARCHITECTURE_KEY = "capabilities:cpu_arch"
_CAPABILITY_KEYS = frozenset({HYPERVISOR_TYPE_KEY, _ARCHITECTURE_KEY})
_TYPES_WITH_CAPABILITIES = frozenset({"qemu", "ch"})
_GUEST_COLUMNS = (
    ("cpu_modes", "cpu_mode_bit", "CPU modes"),
    ("features", "feature_bit", "features"),
    ("devices", "device_bit", "devices"),
)


def hosts_with_traits(table: HostTable, traits: Collection[str]) -> BoolColumn:
    """Return a mask of the hosts that have all of some traits."""
    if not set(traits).issubset(table.trait_bit):
        return nothing(table)
    wanted = _words(table, traits)
    kept: BoolColumn = ((table.traits & wanted) == wanted).all(axis=1)
    return kept


def traits_of(table: HostTable, row: int) -> frozenset[str]:
    """Return the traits of one host."""
    return _members(table.traits[row], table.trait_bit)


def _words(table: HostTable, traits: Collection[str]) -> UInt64Column:
    words: UInt64Column = bit_words([traits], table.trait_bit, table.traits.shape[1])[0]
    return words


def _members(words: UInt64Column, bits: Mapping[str, int]) -> frozenset[str]:
    together = sum(int(word) << (64 * index) for index, word in enumerate(words.tolist()))
    return frozenset(name for name, bit in bits.items() if together >> bit & 1)


# --- image properties ---------------------------------------------------------------------------


def _image_mask(table: HostTable, request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
    if image_hypervisor_type(request.image_properties) in {None, "kvm"}:
        return everything(table)
    kept: BoolColumn = ~table.is_known
    return kept


def _image_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return image_hypervisor_type(request.image_properties)


def _image_events(
    _table: HostTable, request: PlacementRequest, _candidates: BoolColumn
) -> Iterable[StepEvent]:
    if image_hypervisor_type(request.image_properties) is None:
        yield StepEvent(
            step="filter_image_properties",
            event="image_properties_hv_type_undetermined",
            labels={"intent": request.intent.value if request.intent else "unknown"},
        )


def _image_remedy(
    _table: HostTable, request: PlacementRequest, _free: FreeColumns, _row: int
) -> str:
    kind = image_hypervisor_type(request.image_properties)
    return f"the image is made for {kind}, the host runs KVM"


# --- capabilities -------------------------------------------------------------------------------


def _wanted_capabilities(request: PlacementRequest) -> dict[str, str]:
    wanted = {
        key: text for key, text in request.extra_specs.items() if key.startswith(_CAPABILITY_PREFIX)
    }
    if request.hypervisor_type is not None:
        wanted[HYPERVISOR_TYPE_KEY] = request.hypervisor_type
    return wanted


def _expression(key: str, text: str) -> str:
    """Return the expression to evaluate; hypervisor types are normalised word by word."""
    if key != HYPERVISOR_TYPE_KEY:
        return text
    words = text.split()
    if words and is_operator(words[0]):
        return " ".join(normalized_hypervisor_type(word) for word in words)
    return normalized_hypervisor_type(text)


def _capabilities_mask(
    table: HostTable, request: PlacementRequest, _free: FreeColumns
) -> BoolColumn:
    kept = _has_capabilities(table)
    for key, text in sorted(_wanted_capabilities(request).items()):
        expression = _expression(key, text)
        if key not in _CAPABILITY_KEYS:
            return nothing(table)
        words, codes = _capability_words(table, key)
        fits = np.array([satisfies(word, expression) for word in words], dtype=np.bool_)
        kept &= fits[codes]
    return kept


def _capability_words(table: HostTable, key: str) -> tuple[Sequence[str], Int16Column]:
    """Return the words of a capability, and the code of each host's word."""
    if key == HYPERVISOR_TYPE_KEY:
        return table.hypervisor_types, table.hypervisor_type
    return table.cpu_archs, table.cpu_arch


def _has_capabilities(table: HostTable) -> BoolColumn:
    has_any = np.array(
        [kind in _TYPES_WITH_CAPABILITIES for kind in table.hypervisor_types], dtype=np.bool_
    )
    return has_any[table.hypervisor_type]


def _capabilities_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return tuple(sorted(_wanted_capabilities(request).items()))


def _capabilities_events(
    table: HostTable, request: PlacementRequest, candidates: BoolColumn
) -> Iterable[StepEvent]:
    name = "filter_capabilities"
    looked_at = candidates & table.is_known
    for code, kind in enumerate(table.hypervisor_types):
        if kind in _TYPES_WITH_CAPABILITIES:
            continue
        count = int(np.count_nonzero(looked_at & (table.hypervisor_type == code)))
        if count:
            yield StepEvent(
                step=name,
                event="filter_capabilities_unknown_hypervisor_type",
                labels={"hypervisor_type": kind},
                count=count,
            )
    for key, text in sorted(_wanted_capabilities(request).items()):
        if key not in _CAPABILITY_KEYS:
            continue  # no host has it, so there is nothing to read
        words, codes = _capability_words(table, key)
        expression = _expression(key, text)
        unreadable = [code for code, word in enumerate(words) if is_unreadable(word, expression)]
        if unreadable and (looked_at & np.isin(codes, unreadable)).any():
            yield StepEvent(
                step=name, event="filter_capabilities_unreadable_number", labels={"key": key}
            )


def _capabilities_remedy(
    table: HostTable, request: PlacementRequest, _free: FreeColumns, row: int
) -> str:
    kind = table.hypervisor_types[table.hypervisor_type[row]] or "unknown"
    architecture = table.cpu_archs[table.cpu_arch[row]] or "unknown"
    wanted = listed(f"{key} {text}" for key, text in _wanted_capabilities(request).items())
    return f"asked: {wanted}; the host has hypervisor type {kind}, CPU architecture {architecture}"


# --- traits -------------------------------------------------------------------------------------


def _wanted_traits(request: PlacementRequest) -> tuple[frozenset[str], frozenset[str]]:
    if not request.extra_specs:
        return request.required_traits, request.forbidden_traits
    required, forbidden = traits_from_extra_specs(request.extra_specs)
    return required | request.required_traits, forbidden | request.forbidden_traits


def _traits_mask(table: HostTable, request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
    required, forbidden = _wanted_traits(request)
    kept = hosts_with_traits(table, required) if required else everything(table)
    if forbidden:
        kept &= ((table.traits & _words(table, forbidden)) == 0).all(axis=1)
    return kept & table.is_known


def _traits_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return _wanted_traits(request)


def _traits_remedy(
    table: HostTable, request: PlacementRequest, _free: FreeColumns, row: int
) -> str:
    required, forbidden = _wanted_traits(request)
    traits = traits_of(table, row)
    parts = []
    if required - traits:
        parts.append(f"missing traits: {listed(required - traits)}")
    if forbidden & traits:
        parts.append(f"forbidden traits: {listed(forbidden & traits)}")
    return "; ".join(parts) or "the host is not known"


def _trait_filter(name: str, trait: str, key: str, image_key: str = "") -> Filter:
    """Return a filter that asks for one trait if an extra spec or image property exists."""

    def is_active(request: PlacementRequest) -> bool:
        return key in request.extra_specs or bool(
            image_key and image_key in (request.image_properties or {})
        )

    def mask(table: HostTable, _request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
        return hosts_with_traits(table, (trait,))

    def static_key(_table: HostTable, _request: PlacementRequest) -> Hashable:
        return None

    def remedy(_table: HostTable, _request: PlacementRequest, _free: FreeColumns, _row: int) -> str:
        return f"missing traits: {trait}"

    return Filter(name=name, mask=mask, static_key=static_key, is_active=is_active, remedy=remedy)


# --- live migration -----------------------------------------------------------------------------


def _source_row(table: HostTable, request: PlacementRequest) -> int:
    row = table.row_of.get(request.source_host, -1)
    if row < 0 or not table.is_known[row]:
        raise StepError(f"source host {request.source_host} is not known")
    return row


def _migratable_mask(table: HostTable, request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
    source = _source_row(table, request)
    kept: BoolColumn = table.is_known & (table.cpu_arch == table.cpu_arch[source])
    for column_name, _, _ in _GUEST_COLUMNS:
        column: UInt64Column = getattr(table, column_name)
        kept &= ((column[source] & ~column) == 0).all(axis=1)
    return kept


def _migratable_key(_table: HostTable, request: PlacementRequest) -> Hashable:
    return request.source_host


def _migratable_remedy(
    table: HostTable, request: PlacementRequest, _free: FreeColumns, row: int
) -> str:
    source = _source_row(table, request)
    parts = []
    if table.cpu_arch[row] != table.cpu_arch[source]:
        wanted, found = (table.cpu_archs[table.cpu_arch[one]] for one in (source, row))
        parts.append(f"CPU architecture {found or 'unknown'} instead of {wanted or 'unknown'}")
    for column_name, bits_name, label in _GUEST_COLUMNS:
        column, bits = getattr(table, column_name), getattr(table, bits_name)
        missing = _members(column[source], bits) - _members(column[row], bits)
        if missing:
            parts.append(f"missing {label}: {listed(missing)}")
    return "; ".join(parts) or "the host is not known"


filter_image_properties = Filter(
    name="filter_image_properties",
    mask=_image_mask,
    static_key=_image_key,
    is_active=lambda request: request.intent not in NO_IMAGE,
    events=_image_events,
    remedy=_image_remedy,
)
"""Remove KVM hosts for images of other hypervisors (spec scheduling, 7.5)."""

filter_capabilities = Filter(
    name="filter_capabilities",
    mask=_capabilities_mask,
    static_key=_capabilities_key,
    is_active=lambda request: bool(_wanted_capabilities(request)),
    events=_capabilities_events,
    remedy=_capabilities_remedy,
)
"""Keep hosts with the requested hypervisor type and CPU architecture (spec scheduling, 7.6)."""

filter_has_requested_traits = Filter(
    name="filter_has_requested_traits",
    mask=_traits_mask,
    static_key=_traits_key,
    is_active=lambda request: any(_wanted_traits(request)),
    remedy=_traits_remedy,
)
"""Keep hosts with all required and no forbidden trait (spec scheduling, 7.7)."""

filter_has_accelerators = _trait_filter(
    "filter_has_accelerators", ACCELERATOR_TRAIT, "accel:device_profile"
)
"""Keep hosts with accelerators if the flavor wants one (spec scheduling, 7.9)."""

filter_packed_virtqueue = _trait_filter(
    "filter_packed_virtqueue",
    PACKED_VIRTQUEUE_TRAIT,
    "hw:virtio_packed_ring",
    "hw_virtio_packed_ring",
)
"""Retired: keep hosts with packed virtqueues if flavor or image wants them (7.18)."""

filter_live_migratable = Filter(
    name="filter_live_migratable",
    mask=_migratable_mask,
    static_key=_migratable_key,
    is_active=lambda request: request.intent is Intent.LIVE_MIGRATION and bool(request.source_host),
    remedy=_migratable_remedy,
)
"""Keep hosts that can take over a running VM from its host (spec scheduling, 7.14)."""
