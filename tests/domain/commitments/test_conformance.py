from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from commitments.domain.conformance import BrokenRule, check_capacity, check_info, check_usage

Json = dict[str, Any]  # Any: decoded JSON
ZONES = ("az-one", "az-two")
RAM = "hw_version_2101_ram"


def service_info(**resource: object) -> Json:
    return {
        "version": 73,
        "categories": {"compute": {"displayName": "Compute"}},
        "resources": {
            RAM: {
                "displayName": "RAM",
                "categoryName": "compute",
                "topology": "az-separated",
                "hasCapacity": True,
                "hasQuota": True,
                **resource,
            },
        },
        "rates": {"calls": {"topology": "flat", "hasUsage": True}, "idle": {"topology": "flat"}},
        "capacityMetricFamilies": {"load": {"type": "gauge", "help": "", "labelKeys": ["host"]}},
        "usageMetricFamilies": {"plain": {"type": "gauge", "help": "", "labelKeys": None}},
    }


def capacity_report() -> Json:
    return {
        "infoVersion": 73,
        "resources": {RAM: {"perAZ": {zone: {"capacity": 1} for zone in ZONES}}},
        "metrics": {"load": [{"v": 1.5, "l": ["h1"]}]},
    }


def usage_report() -> Json:
    return {
        "infoVersion": 73,
        "resources": {
            RAM: {"forbidden": False, "perAZ": {z: {"usage": 1, "quota": -1} for z in ZONES}}
        },
        "rates": {"calls": {"perAZ": {"any": {"usage": "12"}}}},
        "metrics": {"plain": [{"v": 1}]},
    }


def edited(original: Json, *edits: tuple[str, object]) -> Json:
    """Return a copy with values set at (or, for None, removed from) slash-separated paths."""
    copied = copy.deepcopy(original)
    for path, new in edits:
        *parents, last = path.split("/")
        node = copied
        for key in parents:
            node = node[key]
        if new is None:
            del node[last]
        else:
            node[last] = new
    return copied


def texts(findings: tuple[BrokenRule, ...]) -> list[str]:
    return [str(finding) for finding in findings]


def test_our_own_shape_of_answers_has_no_findings() -> None:
    assert check_info(service_info()) == ()
    assert check_capacity(capacity_report(), service_info(), ZONES) == ()
    assert check_usage(usage_report(), service_info(), ZONES) == ()


def test_an_empty_service_is_valid() -> None:
    empty: Json = {"version": 1, "resources": {}, "rates": None}
    assert check_info(empty) == ()
    assert check_capacity({"infoVersion": 1}, empty, ZONES) == ()
    assert check_usage({"infoVersion": 1, "resources": None}, empty, ZONES) == ()


@pytest.mark.parametrize(
    ("edits", "findings"),
    [
        pytest.param(
            [("resources/foo+private", {"topology": "flat"})],
            ["resources[foo+private]: invalid name"],
            id="name foo+private",
        ),
        pytest.param(
            [("resources/2101_ram", {"topology": "flat"})],
            ["resources[2101_ram]: invalid name"],
            id="name 2101_ram (leading digit)",
        ),
        pytest.param(
            [("rates/a\n", {"topology": "flat"})], ["rates[a\n]: invalid name"], id="rate name"
        ),
        pytest.param(
            [(f"resources/{RAM}/topology", None)],
            [f"resources[{RAM}]: invalid topology None"],
            id="topology missing",
        ),
        pytest.param(
            [(f"resources/{RAM}/topology", "az-seperated")],
            [f"resources[{RAM}]: invalid topology 'az-seperated'"],
            id="topology misspelt",
        ),
        pytest.param(
            [("rates/calls/topology", "")],
            ["rates[calls]: invalid topology ''"],
            id="rate topology",
        ),
        pytest.param(
            [("categories/spare", {"displayName": "Spare"})],
            ["categories[spare]: category is not referenced"],
            id="category not referenced",
        ),
        pytest.param(
            [("categories/compute/displayName", "")],
            ["categories[compute]: category without display name"],
            id="category without display name",
        ),
        pytest.param(
            [("rates/calls/categoryName", "network")],
            ["rates[calls]: undeclared category 'network'"],
            id="category undeclared",
        ),
        pytest.param(
            [("rates/calls/categoryName", ""), ("categories/", {"displayName": "Empty"})],
            ["rates[calls]: empty category name", "categories[]: empty category name"],
            id="category empty",
        ),
    ],
)
def test_service_info_is_checked(edits: list[tuple[str, object]], findings: list[str]) -> None:
    assert texts(check_info(edited(service_info(), *edits))) == findings


PER_AZ = f"resources/{RAM}/perAZ"


@pytest.mark.parametrize(
    ("edits", "findings"),
    [
        pytest.param(
            [(f"{PER_AZ}/az-two", None)],
            [f"resources[{RAM}].perAZ[az-two]: zone is missing"],
            id="az-separated resource reporting only az-one",
        ),
        pytest.param([(f"{PER_AZ}/unknown", {"capacity": 1})], [], id="az-one, az-two, unknown"),
        pytest.param(
            [(f"{PER_AZ}/any", {"capacity": 1})],
            [f"resources[{RAM}].perAZ[any]: unexpected zone"],
            id="any beside real zones",
        ),
        pytest.param(
            [("resources/other", {"perAZ": {}})],
            ["resources[other]: reported, but not declared for it"],
            id="undeclared resource in report",
        ),
        pytest.param(
            [(f"resources/{RAM}", None)],
            [f"resources[{RAM}]: missing from the report"],
            id="declared hasCapacity but missing",
        ),
        pytest.param(
            [("infoVersion", 409), (f"resources/{RAM}", None)],
            ["infoVersion: report of version 409, but the service info has version 73"],
            id="version 409 vs info 73",
        ),
        pytest.param(
            [("metrics/load", None)],
            ["metrics[load]: missing from the report"],
            id="metric missing",
        ),
        pytest.param(
            [("metrics/load", [{"v": 1, "l": ["h"]}, {"v": 1, "l": ["h", "x"]}, {"v": 1}])],
            [
                "metrics[load][1]: 2 labels instead of 1",
                "metrics[load][2]: 0 labels instead of 1",
            ],
            id="label count",
        ),
        pytest.param(
            [("metrics/other", [])],
            ["metrics[other]: reported, but not declared for it"],
            id="metric undeclared",
        ),
    ],
)
def test_capacity_is_checked(edits: list[tuple[str, object]], findings: list[str]) -> None:
    report = edited(capacity_report(), *edits)
    assert texts(check_capacity(report, service_info(), ZONES)) == findings


def test_a_resource_without_capacity_must_not_be_in_the_capacity_report() -> None:
    findings = check_capacity(capacity_report(), service_info(hasCapacity=False), ZONES)
    assert texts(findings) == [f"resources[{RAM}]: reported, but not declared for it"]


def test_a_flat_resource_reports_exactly_the_zone_any() -> None:
    info = service_info(topology="flat")
    flat = edited(capacity_report(), (PER_AZ, {"any": {"capacity": 1}}))
    assert check_capacity(flat, info, ZONES) == ()
    with_unknown = edited(flat, (f"{PER_AZ}/unknown", {"capacity": 1}))
    assert texts(check_capacity(with_unknown, info, ZONES)) == [
        f"resources[{RAM}].perAZ[unknown]: unexpected zone"
    ]
    assert texts(check_capacity(capacity_report(), info, ZONES)) == [
        f"resources[{RAM}].perAZ[any]: zone is missing",
        f"resources[{RAM}].perAZ[az-one]: unexpected zone",
        f"resources[{RAM}].perAZ[az-two]: unexpected zone",
    ]


@pytest.mark.parametrize(
    ("resource", "edits", "findings"),
    [
        pytest.param(
            {}, [(f"{PER_AZ}/unknown", {"usage": 1})], [], id="unknown without quota is valid"
        ),
        pytest.param(
            {},
            [(f"{PER_AZ}/az-two/quota", None)],
            [f"resources[{RAM}].perAZ[az-two]: quota is missing"],
            id="quota on az-one only",
        ),
        pytest.param(
            {},
            [(f"resources/{RAM}/quota", 5)],
            [f"resources[{RAM}]: unexpected quota"],
            id="quota on resource level",
        ),
        pytest.param(
            {},
            [(f"{PER_AZ}/unknown", {"usage": 1, "quota": 0})],
            [f"resources[{RAM}].perAZ[unknown]: unexpected quota"],
            id="quota on unknown",
        ),
        pytest.param(
            {"hasQuota": False},
            [(f"{PER_AZ}/az-two/quota", None)],
            [f"resources[{RAM}].perAZ[az-one]: unexpected quota"],
            id="hasQuota false, quota in a zone",
        ),
        pytest.param(
            {"hasQuota": False},
            [
                (f"{PER_AZ}/az-one/quota", None),
                (f"{PER_AZ}/az-two/quota", None),
                (f"resources/{RAM}/quota", 5),
            ],
            [f"resources[{RAM}]: unexpected quota"],
            id="hasQuota false, quota on the resource",
        ),
        pytest.param(
            {"topology": "az-aware"},
            [
                (f"{PER_AZ}/az-one/quota", None),
                (f"{PER_AZ}/az-two/quota", None),
                (f"resources/{RAM}/quota", 5),
            ],
            [],
            id="az-aware, quota on the resource only",
        ),
        pytest.param(
            {"topology": "az-aware"},
            [(f"{PER_AZ}/az-two/quota", None)],
            [
                f"resources[{RAM}]: quota is missing",
                f"resources[{RAM}].perAZ[az-one]: unexpected quota",
            ],
            id="az-aware, quota in a zone",
        ),
        pytest.param(
            {},
            [(f"{PER_AZ}/az-two", None)],
            [f"resources[{RAM}].perAZ[az-two]: zone is missing"],
            id="zone missing",
        ),
        pytest.param(
            {"hasCapacity": False},
            [(f"resources/{RAM}", None)],
            [f"resources[{RAM}]: missing from the report"],
            id="every declared resource",
        ),
        pytest.param(
            {},
            [("resources/other", {"perAZ": {}})],
            ["resources[other]: reported, but not declared for it"],
            id="undeclared resource in report",
        ),
        pytest.param(
            {},
            [("infoVersion", 409), (f"resources/{RAM}", None)],
            ["infoVersion: report of version 409, but the service info has version 73"],
            id="version 409 vs info 73",
        ),
        pytest.param(
            {},
            [("rates/calls/perAZ/any", {})],
            ["rates[calls].perAZ[any]: usage is missing"],
            id="rate without usage",
        ),
        pytest.param(
            {},
            [("rates/calls/perAZ", {"az-one": {"usage": "1"}})],
            [
                "rates[calls].perAZ[any]: zone is missing",
                "rates[calls].perAZ[az-one]: unexpected zone",
            ],
            id="rate in a wrong zone",
        ),
        pytest.param(
            {},
            [("rates", {"idle": {"perAZ": {}}})],
            [
                "rates[calls]: missing from the report",
                "rates[idle]: reported, but not declared for it",
            ],
            id="rates are exactly those with usage",
        ),
        pytest.param(
            {},
            [("metrics/plain", [{"v": 1, "l": ["x"]}])],
            ["metrics[plain][0]: 1 labels instead of 0"],
            id="label count",
        ),
    ],
)
def test_usage_is_checked(
    resource: Json, edits: list[tuple[str, object]], findings: list[str]
) -> None:
    report = edited(usage_report(), *edits)
    assert texts(check_usage(report, service_info(**resource), ZONES)) == findings


@pytest.mark.parametrize("check", [check_capacity, check_usage])
def test_a_report_without_version_is_refused(
    check: Callable[[Json, Json, tuple[str, ...]], tuple[BrokenRule, ...]],
) -> None:
    assert texts(check({}, service_info(), ZONES)) == [
        "infoVersion: report of version None, but the service info has version 73"
    ]
