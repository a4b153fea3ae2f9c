"""Whatever the settings, rows and zones: Limes would take every report."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.figures.group_capacity import ensure_fresh
from capacity.models import FlavorGroup, FlavorGroupSettings
from commitments.domain.conformance import check_capacity, check_info, check_usage
from commitments.services import info, reports
from tests.api.liquid_client import PROJECT, LiquidClient
from tests.examples import few
from tests.factories import (
    make_commitment,
    make_group,
    make_group_capacity,
    make_group_settings,
    make_host,
    make_quota,
    make_vm,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_refresh")]

RESOURCES = ("ram", "cores", "instances")
FIELD_NAMES = (
    "az",
    "allAZs",
    "dryRun",
    "infoVersion",
    "byProject",
    "byResource",
    "commitments",
    "uuid",
    "oldStatus",
    "newStatus",
    "amount",
    "expiresAt",
    "confirmBy",
    "totalConfirmedAfter",
    "projectMetadata",
    "domain",
    "name",
    "resources",
    "perAZ",
    "quota",
    "hw_version_fixed_ram",
    "hw_version_fixed_cores",
    "az-a",
    "p1",
)
subsets = st.lists(st.sampled_from(RESOURCES), unique=True)
zones = st.lists(
    st.sampled_from(["az-a", "az-b", "az-c"])
    | st.text(min_size=1, max_size=8).filter(
        lambda text: text not in {"unknown", "any", "total"} and "\x00" not in text
    )
    | st.sampled_from(["z" * 255, "\U0001f600", " ", "az-a ", "AZ-A"]),
    unique=True,
    max_size=4,
)
group_settings = st.fixed_dictionaries(
    {
        "ram_unit_gib": st.sampled_from([0, 1, 2, 16, 480, 1 << 33]),
        "handles": subsets,
        "capacity": subsets,
        "quota": subsets,
    }
)


@pytest.fixture
def region() -> None:
    make_group("fixed", flavors=[("f-small", 16384, 4), ("f-large", 32768, 8)])
    make_group("mixed", flavors=[("m-small", 2032, 1), ("m-large", 8192, 2)])
    make_group("gone", flavors=[("g-small", 4096, 1)])
    make_commitment(group="gone")
    FlavorGroup.objects.filter(name="gone").update(is_retired=True)
    FlavorGroupSettings.objects.all().delete()
    for zone in ("az-a", "az-b", ""):
        host = make_host(f"h-{zone}", zone=zone)
        for flavor in ("f-small", "m-large", "g-small"):
            make_vm(host=host, flavor_name=flavor, project_id=PROJECT)
    make_quota(PROJECT, "az-a", {"hw_version_fixed_ram": 7, "hw_version_mixed_cores": -1})
    make_group_capacity("fixed", "az-a", running_instances=3, reserved_unused_slots=2)
    make_group_capacity("mixed", "az-b", running_instances=3)


@pytest.mark.usefixtures("region")
@given(
    all_zones=zones,
    by_group=st.dictionaries(st.sampled_from(["*", "fixed", "mixed", "gone"]), group_settings),
    is_unknown_reported=st.booleans(),
    has_metrics=st.booleans(),
    is_computed=st.booleans(),
    project_id=st.sampled_from([PROJECT, "nobody"]),
)
@few(20)
def test_every_report_is_one_that_limes_accepts(  # noqa: PLR0917 - hypothesis and fixtures
    liquid: LiquidClient,
    configure: Any,
    all_zones: list[str],
    by_group: dict[str, dict[str, Any]],
    is_unknown_reported: bool,
    has_metrics: bool,
    is_computed: bool,
    project_id: str,
) -> None:
    configure(
        liquid={"report_unknown_zone": is_unknown_reported, "report_placeable_vms": has_metrics}
    )
    FlavorGroupSettings.objects.all().delete()
    for name, content in by_group.items():
        make_group_settings(name, **content)
    if is_computed:
        ensure_fresh(all_zones)
    answered = liquid.get_info()
    assert check_info(answered) == ()
    capacity = liquid.report_capacity(*all_zones)
    assert check_capacity(capacity, answered, all_zones) == ()
    usage = liquid.report_usage(*all_zones, project_id=project_id)
    assert check_usage(usage, answered, all_zones) == ()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["az-a", "confirmed", "2026-03-01T12:00:00Z", PROJECT]),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELD_NAMES) | st.text(max_size=3),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)
commitments = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "uuid": st.sampled_from(["aaaaaa-1", "aaaaaa-2", "short", "", "x" * 50]),
            "oldStatus": st.sampled_from(
                [None, "planned", "pending", "guaranteed", "confirmed", "superseded", "expired"]
            ),
            "newStatus": st.sampled_from(
                [None, "planned", "pending", "guaranteed", "confirmed", "superseded", "expired"]
            ),
            "amount": st.integers(0, 20) | st.sampled_from([2**31, 2**63 - 1]),
            "expiresAt": st.sampled_from(
                ["2099-01-01T00:00:00Z", "2000-01-01T00:00:00Z", "9999-12-31T23:59:59Z", None]
            ),
            "confirmBy": st.sampled_from(["2098-01-01T00:00:00Z", "0001-01-02T00:00:00Z"]),
            "oldExpiresAt": st.just("2098-01-01T00:00:00Z"),
        },
    ),
    max_size=3,
)
totals = st.integers(0, 20) | st.just(2**63 - 1)
change_requests = st.fixed_dictionaries(
    {
        "az": st.sampled_from(["az-a", "az-b", "az-x", "\U0001f600"]),
        "dryRun": st.booleans(),
        "byProject": st.dictionaries(
            st.sampled_from(["p1", "p2"]),
            st.fixed_dictionaries(
                {
                    "byResource": st.dictionaries(
                        st.sampled_from(
                            [
                                "hw_version_fixed_ram",
                                "hw_version_fixed_cores",
                                "hw_version_fixed_instances",
                                "hw_version_gone_ram",
                                "hw_version_none_ram",
                                "x",
                                "",
                            ]
                        ),
                        st.fixed_dictionaries(
                            {
                                "totalConfirmedBefore": totals,
                                "totalConfirmedAfter": totals,
                                "totalGuaranteedAfter": totals,
                                "commitments": commitments,
                            }
                        ),
                        max_size=2,
                    )
                }
            ),
            max_size=2,
        ),
    }
)


@pytest.mark.usefixtures("region")
@given(json_values)
@few(25)
def test_no_json_makes_an_endpoint_fail(liquid: LiquidClient, content: Any) -> None:
    make_settings_once()
    for method, path in (
        ("POST", liquid.capacity),
        ("POST", liquid.usage()),
        ("PUT", liquid.quota()),
        ("POST", liquid.change),
    ):
        response = liquid.send(method, path, json.dumps(content).encode())
        assert response.status_code in {200, 204, 400, 409, 413, 422}, response.content


@pytest.mark.usefixtures("region")
@given(change_requests)
@few(25)
def test_no_change_request_makes_the_endpoint_fail(
    liquid: LiquidClient, content: dict[str, Any]
) -> None:
    make_settings_once()
    content["infoVersion"] = info.current_service_info().version
    response = liquid.send("POST", liquid.change, content)
    assert response.status_code in {200, 400, 422, 503}, response.content
    assert (
        reports.report_capacity(["az-a", "az-b"])["infoVersion"]
        == info.current_service_info().version
    )


def make_settings_once() -> None:
    if not FlavorGroupSettings.objects.filter(group_name="*").exists():
        make_group_settings("*")
