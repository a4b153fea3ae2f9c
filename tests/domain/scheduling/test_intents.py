from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.intents import (
    CallOptions,
    Intent,
    PlacedVM,
    hint_text,
    image_hypervisor_type,
    inferred_intent,
    intent_from_hints,
)
from scheduling.request import PlacementRequest

from .worlds import readable


@pytest.mark.parametrize(
    ("hint", "intent"),
    [
        ("rebuild", Intent.REBUILD),
        ("resize", Intent.RESIZE),
        ("live_migrate", Intent.LIVE_MIGRATION),
        ("live_migration", Intent.CREATE),
        ("evacuate", Intent.EVACUATE),
        ("reserve_for_failover", Intent.RESERVE_FOR_FAILOVER),
        ("reuse_failover_reservation", Intent.REUSE_FAILOVER_RESERVATION),
        ("reserve_for_committed_resource", Intent.RESERVE_FOR_COMMITTED_RESOURCE),
        ("capacity_probe", Intent.CAPACITY_PROBE),
        (["evacuate"], Intent.EVACUATE),
        ("", Intent.CREATE),
        ("x", Intent.CREATE),
        (123, None),
        ([], None),
        ([123], None),
    ],
    ids=readable,
)
def test_intent_comes_from_the_hint(hint: object, intent: Intent | None) -> None:
    assert intent_from_hints({"_nova_check_type": hint}) is intent


@pytest.mark.parametrize("hints", [None, {}])
def test_without_hint_there_is_no_intent(hints: dict[str, object] | None) -> None:
    assert intent_from_hints(hints) is None


LOST = "its host h1 is down or fenced"


def placed(flavor: str, *, down: bool) -> PlacedVM:
    return PlacedVM(flavor_name=flavor, host_name="h1", is_host_lost=down)


@pytest.mark.parametrize(
    ("vm", "intent", "reason"),
    [
        pytest.param(None, Intent.CREATE, "no host carries the VM", id="on no host"),
        pytest.param(
            placed("m1", down=True),
            Intent.EVACUATE,
            LOST,
            id="host down",
        ),
        pytest.param(
            placed("m2", down=True),
            Intent.EVACUATE,
            LOST,
            id="down, other flavor",
        ),
        pytest.param(
            placed("m2", down=False), Intent.RESIZE, "it is of flavor m2 on h1", id="other flavor"
        ),
        pytest.param(
            placed("m1", down=False),
            Intent.LIVE_MIGRATION,
            "it is on h1, which is not lost",
            id="same flavor",
        ),
    ],
)
def test_an_intent_that_nobody_tells_is_inferred(
    vm: PlacedVM | None, intent: Intent, reason: str
) -> None:
    assert inferred_intent(vm, "m1") == (intent, reason)


def test_hint_is_a_text_or_the_first_text_of_a_list() -> None:
    hints = {"a": "x", "b": ["y", "z"], "c": [["x"]], "d": {"x": 1}}
    assert [hint_text(hints, key) for key in "abcde"] == ["x", "y", None, None, None]


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"img_hv_type": "KVM"}, "kvm"),
        ({"hypervisor_type": "vmware"}, "vmware"),
        ({"img_hv_type": "baremetal", "hypervisor_type": "kvm"}, "baremetal"),
        ({"img_hv_type": "xen", "hypervisor_type": "kvm"}, None),
        ({"img_hv_type": 1}, None),
        ({}, None),
        (None, None),
    ],
    ids=readable,
)
def test_image_says_its_hypervisor_type(properties: dict[str, object] | None, kind: str) -> None:
    assert image_hypervisor_type(properties) == kind


ALL_SKIPS = {"skip_history", "skip_inflight", "skip_committed_resource_tracking"}


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (set(), ""),
        ({"read_only", *ALL_SKIPS}, ""),
        (ALL_SKIPS, ""),
        ({"read_only"}, "read_only requires skip_history"),
        ({"read_only", "skip_history"}, "read_only requires skip_inflight"),
        (
            {"read_only", "skip_history", "skip_inflight"},
            "read_only requires skip_committed_resource_tracking",
        ),
    ],
    ids=["none", "read_only + skips", "skips", "read_only", "+ history", "+ history + in-flight"],
)
def test_read_only_requires_all_skips_in_order(flags: set[str], problem: str) -> None:
    assert replace(CallOptions(), **dict.fromkeys(flags, True)).problem() == problem  # type: ignore[arg-type]


def test_negative_limit_is_refused() -> None:
    assert "max_candidates" in CallOptions(max_candidates=-1).problem()


def test_options_are_combined_with_the_request() -> None:
    request = PlacementRequest(
        request_key="r", memory_bytes=1, vcpus=1, ignored_kinds=frozenset({"failover"})
    )
    options = CallOptions(
        assume_empty_hosts=True,
        lock_reservations=True,
        ignored_reservation_types=frozenset({"committed"}),
    )
    combined = request.with_options(options)
    assert combined.assume_empty_hosts
    assert combined.lock_reservations
    assert combined.ignored_kinds == {"committed", "failover"}
    assert combined.with_options(CallOptions()) == combined
