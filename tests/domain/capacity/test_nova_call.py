from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.nova.nova_call import (
    HANA_TRAIT_KEY,
    PipelineNotInferredError,
    inferred_pipeline,
    limited_to,
    planned_first,
    shuffled_top,
)

TYPE = "capabilities:hypervisor_type"


@pytest.mark.parametrize(
    ("extra_specs", "pipeline"),
    [
        pytest.param({TYPE: "qemu"}, "kvm-general-purpose-load-balancing", id="qemu"),
        pytest.param({TYPE: "QEMU"}, "kvm-general-purpose-load-balancing", id="QEMU"),
        pytest.param({TYPE: "CH"}, "kvm-general-purpose-load-balancing", id="CH"),
        pytest.param(
            {TYPE: "qemu", HANA_TRAIT_KEY: "required"}, "kvm-hana-bin-packing", id="qemu HANA"
        ),
        pytest.param(
            {TYPE: "ch", HANA_TRAIT_KEY: "REQUIRED"}, "kvm-hana-bin-packing", id="ch HANA"
        ),
        pytest.param(
            {TYPE: "qemu", HANA_TRAIT_KEY: "Forbidden"},
            "kvm-general-purpose-load-balancing",
            id="HANA forbidden",
        ),
        pytest.param(
            {TYPE: "VMware vCenter Server"}, "vmware-general-purpose-load-balancing", id="vmware"
        ),
        pytest.param(
            {TYPE: "vmware vcenter server", HANA_TRAIT_KEY: "required"},
            "vmware-hana-bin-packing",
            id="vmware HANA",
        ),
    ],
)
def test_the_pipeline_follows_from_the_flavor(extra_specs: dict[str, str], pipeline: str) -> None:
    assert inferred_pipeline(extra_specs) == pipeline


@pytest.mark.parametrize(
    ("extra_specs", "subject"),
    [
        pytest.param(None, "hypervisor type", id="extra specs null"),
        pytest.param({}, "hypervisor type", id="missing"),
        pytest.param({TYPE: "xen"}, "hypervisor type", id="anything else"),
        pytest.param({TYPE: ""}, "hypervisor type", id="empty type"),
        pytest.param({TYPE: "ironic", HANA_TRAIT_KEY: "x"}, "hypervisor type", id="type is first"),
        pytest.param({TYPE: "qemu", HANA_TRAIT_KEY: ""}, "flavor type", id="HANA empty"),
        pytest.param({TYPE: "qemu", HANA_TRAIT_KEY: "maybe"}, "flavor type", id="HANA other"),
    ],
)
def test_a_flavor_that_does_not_say_its_pipeline_is_an_error(
    extra_specs: dict[str, str] | None, subject: str
) -> None:
    with pytest.raises(PipelineNotInferredError) as caught:
        inferred_pipeline(extra_specs)
    assert caught.value.subject == subject
    assert str(caught.value).startswith(f"failed to determine {subject}")


@pytest.mark.parametrize(
    ("request_hosts", "answer", "limited"),
    [
        ("123", "123", "123"),
        ("13", "123", "13"),
        ("4", "12", ""),
        ("123", "312", "312"),
        ("12", "112", "112"),
        ("12", "", ""),
    ],
)
def test_the_answer_is_limited_to_the_hosts_of_the_request(
    request_hosts: str, answer: str, limited: str
) -> None:
    assert limited_to(tuple(answer), tuple(request_hosts)) == tuple(limited)


@pytest.mark.parametrize("count", [-1, 0, 1])
def test_nothing_is_shuffled_with_fewer_than_two_places(count: int) -> None:
    assert shuffled_top("abcdef", count, seed="vm-1") == tuple("abcdef")


def test_one_host_and_no_host_are_left_alone() -> None:
    assert shuffled_top("a", 3, seed="vm-1") == ("a",)
    assert shuffled_top("", 3, seed="vm-1") == ()


@given(
    hosts=st.lists(st.text(max_size=5), max_size=8),
    count=st.integers(-2, 10),
    seed=st.text(max_size=10),
)
def test_a_shuffle_keeps_the_hosts_and_the_place_of_the_rest(
    hosts: list[str], count: int, seed: str
) -> None:
    shuffled = shuffled_top(hosts, count, seed=seed)
    top = max(0, min(count, len(hosts)))
    assert Counter(shuffled[:top]) == Counter(hosts[:top])
    assert list(shuffled[top:]) == hosts[top:]
    assert shuffled == shuffled_top(hosts, count, seed=seed)


@pytest.mark.parametrize("preferred", [1, 2, 3, 5])
def test_preferred_hosts_stay_before_the_others(preferred: int) -> None:
    shuffles = {
        shuffled_top("abcdef", 4, seed=f"vm-{number}", preferred=preferred) for number in range(50)
    }
    assert len(shuffles) > 1
    assert {frozenset(hosts[:preferred]) for hosts in shuffles} == {frozenset("abcdef"[:preferred])}


def test_different_requests_spread_over_the_best_hosts() -> None:
    first = Counter(shuffled_top("abcdef", 3, seed=f"vm-{number}")[0] for number in range(300))
    assert set(first) == set("abc")
    assert min(first.values()) > 60


@pytest.mark.parametrize(
    ("planned", "expected"),
    [
        pytest.param("c", ("c", "a", "b"), id="the planned host comes first"),
        pytest.param("a", ("a", "b", "c"), id="it is first already"),
        pytest.param("x", ("a", "b", "c"), id="it did not pass the filters"),
        pytest.param("", ("a", "b", "c"), id="nothing is planned"),
    ],
)
def test_planned_host_is_answered_first(planned: str, expected: tuple[str, ...]) -> None:
    assert planned_first(("a", "b", "c"), planned) == expected
