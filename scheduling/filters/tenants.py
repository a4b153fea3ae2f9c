"""Filters by who asks (spec scheduling, 7.8, 7.12, 7.13, 7.16)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence

import numpy as np

from scheduling.columns import BoolColumn
from scheduling.filters.base import (
    NEVER_A_VM,
    ON_ERROR_SKIP,
    Filter,
    StepError,
    StepEvent,
    listed,
)
from scheduling.filters.features import hosts_with_traits
from scheduling.free import FreeColumns
from scheduling.intents import Intent
from scheduling.quota import QuotaDemand, QuotaFacts, QuotaVerdict, quota_verdict
from scheduling.request import PlacementRequest
from scheduling.table import HostTable

EXTERNAL_CUSTOMER_TRAIT = "CUSTOM_EXTERNAL_CUSTOMER_EXCLUSIVE"
_QUOTA_NAME = "filter_quota_enforcement"
_QUOTA_SKIPS = {
    Intent.EVACUATE: "accept_skipped_intent_migration",
    Intent.LIVE_MIGRATION: "accept_skipped_intent_migration",
    Intent.RESERVE_FOR_FAILOVER: "accept_skipped_intent_internal",
    Intent.REUSE_FAILOVER_RESERVATION: "accept_skipped_intent_internal",
    Intent.RESERVE_FOR_COMMITTED_RESOURCE: "accept_skipped_intent_internal",
    Intent.CAPACITY_PROBE: "accept_skipped",
}


def filter_external_customer(
    *, domain_name_prefixes: Collection[str], ignored_domain_names: Collection[str] = ()
) -> Filter:
    """Return the filter that keeps customers of some domains on hosts of their own.

    A domain that could not be looked up fails the request: it might be such a customer's.

    Args:
        domain_name_prefixes: Prefixes of such domains, at least one (``domainNamePrefixes``).
        ignored_domain_names: Exceptions (``ignoredDomainNames``).

    Raises:
        ValueError: If there is no prefix.

    Source: spec scheduling, 7.8; commitments, 9.5 (fail closed).
    """
    if not domain_name_prefixes:
        raise ValueError("at least one domain name prefix is needed")
    prefixes, ignored = tuple(domain_name_prefixes), frozenset(ignored_domain_names)

    def is_active(request: PlacementRequest) -> bool:
        if request.intent in NEVER_A_VM:
            return False
        if request.domain_name is None:
            return request.domain_is_unresolved
        return request.domain_name.startswith(prefixes) and request.domain_name not in ignored

    def mask(table: HostTable, request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
        if request.domain_name is None:
            raise StepError("the domain of the project could not be looked up")
        return hosts_with_traits(table, (EXTERNAL_CUSTOMER_TRAIT,))

    def key(_table: HostTable, request: PlacementRequest) -> Hashable:
        return request.domain_name is None

    def remedy(_table: HostTable, request: PlacementRequest, _free: FreeColumns, _row: int) -> str:
        return f"domain {request.domain_name} needs trait {EXTERNAL_CUSTOMER_TRAIT}"

    return Filter(
        name="filter_external_customer",
        mask=mask,
        static_key=key,
        is_active=is_active,
        remedy=remedy,
    )


def _is_for_a_vm(request: PlacementRequest) -> bool:
    return request.intent not in NEVER_A_VM


def _names_a_project(request: PlacementRequest) -> bool:
    return bool(request.project_id) and _is_for_a_vm(request)


def _open_codes(classes: Sequence[frozenset[str]], project_id: str) -> tuple[int, ...]:
    return tuple(
        code for code, projects in enumerate(classes) if not projects or project_id in projects
    )


def _class_filter(
    name: str,
    classes_of: Callable[[HostTable], tuple[frozenset[str], ...]],
    codes_of: Callable[[HostTable], np.ndarray],
    is_active: Callable[[PlacementRequest], bool],
) -> Filter:
    """Return a filter by classes of tenants: the empty class is open, others list projects."""

    def open_classes(table: HostTable, request: PlacementRequest) -> tuple[int, ...]:
        return _open_codes(classes_of(table), request.project_id)

    def mask(table: HostTable, request: PlacementRequest, _free: FreeColumns) -> BoolColumn:
        is_open = np.zeros(len(classes_of(table)), dtype=np.bool_)
        is_open[list(open_classes(table, request))] = True
        kept: BoolColumn = is_open[codes_of(table)]
        return kept

    def remedy(table: HostTable, request: PlacementRequest, _free: FreeColumns, row: int) -> str:
        projects = classes_of(table)[codes_of(table)[row]]
        who = f"project {request.project_id}" if request.project_id else "a request without project"
        return f"{who} is not among the host's projects: {listed(projects)}"

    return Filter(name=name, mask=mask, static_key=open_classes, is_active=is_active, remedy=remedy)


filter_allowed_projects = _class_filter(
    "filter_allowed_projects",
    lambda table: table.tenant_classes,
    lambda table: table.tenant_class,
    _names_a_project,
)
"""Keep hosts that are open to all or to the request's project, if it names one (7.12)."""

filter_aggregate_metadata = _class_filter(
    "filter_aggregate_metadata",
    lambda table: table.aggregate_tenant_classes,
    lambda table: table.aggregate_tenant_class,
    _is_for_a_vm,
)
"""Keep hosts whose aggregates are open to all or to the request's project, named or not (7.13)."""


def tenant_classes_open_to(table: HostTable, request: PlacementRequest) -> Hashable:
    """Return what these two filters depend on of the request's project."""
    project = request.project_id
    return (
        _open_codes(table.tenant_classes, project) if _names_a_project(request) else None,
        _open_codes(table.aggregate_tenant_classes, project) if _is_for_a_vm(request) else None,
    )


def request_quota_verdict(request: PlacementRequest) -> QuotaVerdict:
    """Return what the quota filter thinks of a request.

    Raises:
        StepError: If the quota could not be looked up.

    Source: spec scheduling, 7.16.
    """
    skipped = _QUOTA_SKIPS.get(request.intent) if request.intent else None
    if skipped is not None:
        return QuotaVerdict(decision=skipped)
    facts = request.quota if request.quota is not None else QuotaFacts()
    if facts.lookup_error:
        raise StepError(f"the quota could not be looked up: {facts.lookup_error}")
    demand = QuotaDemand(
        project_id=request.project_id,
        zone=request.zone,
        group=request.commitment_group,
        memory_bytes=request.asked.memory_bytes,
        vcpus=request.asked.vcpus,
        instances=max(1, request.num_instances),
    )
    return quota_verdict(demand, facts)


def filter_quota_enforcement(*, enforce: bool = False) -> Filter:
    """Return the filter that judges a request by its project's quota: all hosts or none.

    Args:
        enforce: Remove the hosts; otherwise only decide and count (``enforce``).

    Source: spec scheduling, 7.16.
    """

    def mask(_table: HostTable, request: PlacementRequest, free: FreeColumns) -> BoolColumn:
        is_rejected = request_quota_verdict(request).is_rejected
        return np.full(len(free.vcpus), not (is_rejected and enforce), dtype=np.bool_)

    def events(
        _table: HostTable, request: PlacementRequest, _candidates: BoolColumn
    ) -> Iterable[StepEvent]:
        verdict = request_quota_verdict(request)
        yield StepEvent(
            step=_QUOTA_NAME,
            event="quota_enforcement_decision",
            labels={
                "mode": "enforce" if enforce else "shadow",
                "decision": verdict.decision,
                "resource": verdict.resource,
                "availability_zone": request.zone,
                "flavor_group": request.commitment_group,
            },
        )

    def remedy(_table: HostTable, request: PlacementRequest, _free: FreeColumns, _row: int) -> str:
        return f"the project needs more quota: {request_quota_verdict(request).resource}"

    return Filter(name=_QUOTA_NAME, mask=mask, on_error=ON_ERROR_SKIP, events=events, remedy=remedy)
