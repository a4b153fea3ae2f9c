"""The checks of Limes on our answers (spec liquid, 4.7): any finding makes it discard a report."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9._-]*")
FLAT = "flat"
AZ_AWARE = "az-aware"
AZ_SEPARATED = "az-separated"
TOPOLOGIES = (FLAT, AZ_AWARE, AZ_SEPARATED)
ZONE_ANY = "any"
ZONE_UNKNOWN = "unknown"

JsonObject = Mapping[str, Any]  # Any: decoded JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRule:
    """One broken rule.

    Attributes:
        path: Where, such as ``resources[hw_version_1_ram].perAZ[az-one]``.
        message: What is wrong there.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def check_info(service_info: JsonObject) -> tuple[BrokenRule, ...]:
    """Return what is wrong with a ServiceInfo, in the order of its content.

    Source: spec liquid, 4.7.
    """
    return tuple(_info_findings(service_info))


def check_capacity(
    report: JsonObject, service_info: JsonObject, all_zones: Sequence[str]
) -> tuple[BrokenRule, ...]:
    """Return what is wrong with a ServiceCapacityReport.

    Args:
        report: The answer of ``report-capacity``.
        service_info: The ServiceInfo that Limes has.
        all_zones: ``allAZs`` of the request.

    Source: spec liquid, 4.7.
    """
    return tuple(_version_findings(report, service_info)) or tuple(
        _capacity_findings(report, service_info, all_zones)
    )


def check_usage(
    report: JsonObject, service_info: JsonObject, all_zones: Sequence[str]
) -> tuple[BrokenRule, ...]:
    """Return what is wrong with a ServiceUsageReport.

    Args:
        report: The answer of ``report-usage``.
        service_info: The ServiceInfo that Limes has.
        all_zones: ``allAZs`` of the request.

    Source: spec liquid, 4.7.
    """
    return tuple(_version_findings(report, service_info)) or tuple(
        _usage_findings(report, service_info, all_zones)
    )


def _info_findings(service_info: JsonObject) -> Iterator[BrokenRule]:
    categories = _object(service_info, "categories")
    referenced = set()
    for kind in ("resources", "rates"):
        for name, declared in _sorted_items(service_info, kind):
            referenced.add(declared.get("categoryName"))
            yield from _declaration_findings(name, declared, f"{kind}[{name}]", categories)
    for name, category in _sorted_items(service_info, "categories"):
        path = f"categories[{name}]"
        if not name:
            yield BrokenRule(path=path, message="empty category name")
        if not category.get("displayName"):
            yield BrokenRule(path=path, message="category without display name")
        if name not in referenced:
            yield BrokenRule(path=path, message="category is not referenced")


def _declaration_findings(
    name: str, declared: JsonObject, path: str, categories: Collection[str]
) -> Iterator[BrokenRule]:
    if not NAME.fullmatch(name):
        yield BrokenRule(path=path, message="invalid name")
    topology, category = declared.get("topology"), declared.get("categoryName")
    if topology not in TOPOLOGIES:
        yield BrokenRule(path=path, message=f"invalid topology {topology!r}")
    if category == "":
        yield BrokenRule(path=path, message="empty category name")
    elif category is not None and category not in categories:
        yield BrokenRule(path=path, message=f"undeclared category {category!r}")


def _version_findings(report: JsonObject, service_info: JsonObject) -> Iterator[BrokenRule]:
    reported, current = report.get("infoVersion"), service_info.get("version")
    if reported != current:
        message = f"report of version {reported}, but the service info has version {current}"
        yield BrokenRule(path="infoVersion", message=message)


def _capacity_findings(
    report: JsonObject, service_info: JsonObject, all_zones: Sequence[str]
) -> Iterator[BrokenRule]:
    declared = _object(service_info, "resources")
    expected = {name for name, resource in declared.items() if resource.get("hasCapacity")}
    yield from _name_findings("resources", _object(report, "resources"), expected)
    for name, resource in _sorted_items(report, "resources"):
        if name in expected:
            path = f"resources[{name}]"
            yield from _zone_findings(path, resource, declared[name], all_zones)
    families = _object(service_info, "capacityMetricFamilies")
    yield from _metric_findings(_object(report, "metrics"), families)


def _usage_findings(
    report: JsonObject, service_info: JsonObject, all_zones: Sequence[str]
) -> Iterator[BrokenRule]:
    declared = _object(service_info, "resources")
    yield from _name_findings("resources", _object(report, "resources"), declared)
    for name, resource in _sorted_items(report, "resources"):
        if name in declared:
            path = f"resources[{name}]"
            yield from _zone_findings(path, resource, declared[name], all_zones)
            yield from _quota_findings(path, resource, declared[name], all_zones)
    yield from _rate_findings(report, service_info, all_zones)
    families = _object(service_info, "usageMetricFamilies")
    yield from _metric_findings(_object(report, "metrics"), families)


def _rate_findings(
    report: JsonObject, service_info: JsonObject, all_zones: Sequence[str]
) -> Iterator[BrokenRule]:
    declared = _object(service_info, "rates")
    expected = {name for name, rate in declared.items() if rate.get("hasUsage")}
    yield from _name_findings("rates", _object(report, "rates"), expected)
    for name, rate in _sorted_items(report, "rates"):
        if name not in expected:
            continue
        path = f"rates[{name}]"
        yield from _zone_findings(path, rate, declared[name], all_zones)
        for zone, in_zone in _sorted_items(rate, "perAZ"):
            if in_zone.get("usage") is None:
                yield BrokenRule(path=f"{path}.perAZ[{zone}]", message="usage is missing")


def _name_findings(
    kind: str, reported: Collection[str], expected: Collection[str]
) -> Iterator[BrokenRule]:
    for name in sorted(set(expected) - set(reported)):
        yield BrokenRule(path=f"{kind}[{name}]", message="missing from the report")
    for name in sorted(set(reported) - set(expected)):
        yield BrokenRule(path=f"{kind}[{name}]", message="reported, but not declared for it")


def _zone_findings(
    path: str, reported: JsonObject, declared: JsonObject, all_zones: Sequence[str]
) -> Iterator[BrokenRule]:
    zones = set(_object(reported, "perAZ"))
    is_flat = declared.get("topology") == FLAT
    required = {ZONE_ANY} if is_flat else set(all_zones)
    allowed = required if is_flat else required | {ZONE_UNKNOWN}
    for zone in sorted(required - zones):
        yield BrokenRule(path=f"{path}.perAZ[{zone}]", message="zone is missing")
    for zone in sorted(zones - allowed):
        yield BrokenRule(path=f"{path}.perAZ[{zone}]", message="unexpected zone")


def _quota_findings(
    path: str, reported: JsonObject, declared: JsonObject, all_zones: Sequence[str]
) -> Iterator[BrokenRule]:
    has_quota = bool(declared.get("hasQuota"))
    is_per_zone = declared.get("topology") == AZ_SEPARATED
    yield from _presence_finding(path, reported, is_expected=has_quota and not is_per_zone)
    for zone, in_zone in _sorted_items(reported, "perAZ"):
        is_expected = has_quota and is_per_zone and zone in all_zones
        yield from _presence_finding(f"{path}.perAZ[{zone}]", in_zone, is_expected=is_expected)


def _presence_finding(
    path: str, reported: JsonObject, *, is_expected: bool
) -> Iterator[BrokenRule]:
    is_present = reported.get("quota") is not None
    if is_expected and not is_present:
        yield BrokenRule(path=path, message="quota is missing")
    if is_present and not is_expected:
        yield BrokenRule(path=path, message="unexpected quota")


def _metric_findings(reported: JsonObject, families: JsonObject) -> Iterator[BrokenRule]:
    yield from _name_findings("metrics", reported, families)
    for name in sorted(set(reported) & set(families)):
        label_count = len(families[name].get("labelKeys") or ())
        for position, metric in enumerate(reported[name] or ()):
            given_count = len(metric.get("l") or ())
            if given_count != label_count:
                message = f"{given_count} labels instead of {label_count}"
                yield BrokenRule(path=f"metrics[{name}][{position}]", message=message)


def _object(parent: JsonObject, key: str) -> JsonObject:
    """Return an object of JSON that may be left out or null when empty."""
    found: JsonObject = parent.get(key) or {}
    return found


def _sorted_items(parent: JsonObject, key: str) -> list[tuple[str, JsonObject]]:
    found = _object(parent, key)
    return [(name, found[name] or {}) for name in sorted(found)]
