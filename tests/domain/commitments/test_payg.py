from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.groups.flavor_groups import FlavorGroupDef, FlavorSpec
from commitments.domain.payg import PaygVM, adopt_vms
from commitments.domain.planner import SlotLimitExceeded, SlotPlan, plan_slots
from commitments.domain.state import CommitmentState
from commitments.domain.statuses import CommitmentStatus, ResourceType
from scheduling.resources import GIB, ResourceVector

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SIZES = {"large": 32, "medium": 16, "small": 8}
GROUP = FlavorGroupDef(
    name="g",
    flavors=tuple(
        FlavorSpec(name=name, memory_bytes=gib * GIB, vcpus=gib // 2) for name, gib in SIZES.items()
    ),
)


def vm(flavor: str, uuid: str = "") -> PaygVM:
    size = ResourceVector(memory_bytes=SIZES[flavor] * GIB, vcpus=SIZES[flavor] // 2)
    return PaygVM(
        vm_uuid=uuid or f"vm-{flavor}",
        host_id=7,
        host_name="host-7",
        flavor_name=flavor,
        flavor_memory_bytes=size.memory_bytes,
        flavor_vcpus=size.vcpus,
        resources=size,
    )


def planned(
    candidates: list[PaygVM], gib: int, max_slots: int = 0
) -> list[tuple[str | None, int]] | str:
    desired = CommitmentState(
        commitment_uuid="abc123",
        project_id="project-1",
        domain_id="",
        flavor_group_name="g",
        zone="az-1",
        resource_type=ResourceType.MEMORY,
        requested_amount=gib * GIB,
        status=CommitmentStatus.CONFIRMED,
    )
    plan = plan_slots([], desired, GROUP, now=NOW, max_slots=max_slots, payg=candidates)
    if not isinstance(plan, SlotPlan):
        return plan.message
    return [
        (None if new.vm is None else new.vm.vm_uuid, new.memory_bytes // GIB)
        for new in plan.creates
    ]


@pytest.mark.parametrize(
    ("candidates", "gib", "slots"),
    [
        pytest.param([vm("small")], 8, [("vm-small", 8)], id="small 8, delta 8"),
        pytest.param([], 8, [(None, 8)], id="none, delta 8"),
        pytest.param([vm("small")], 4, [("vm-small", 4)], id="small 8, delta 4: undersized"),
        pytest.param(
            [vm("small")], 16, [("vm-small", 8), (None, 8)], id="small 8, delta 16: one blind"
        ),
        pytest.param([vm("large"), vm("small")], 8, [("vm-small", 8)], id="large, small; 8"),
        pytest.param([vm("large"), vm("small")], 4, [("vm-small", 4)], id="large, small; 4"),
        pytest.param(
            [vm("small"), vm("medium"), vm("large")],
            40,
            [("vm-large", 32), ("vm-small", 8)],
            id="large, medium, small; 40: medium untouched",
        ),
    ],
)
def test_running_vms_are_covered_as_the_examples_say(
    candidates: list[PaygVM], gib: int, slots: list[tuple[str | None, int]]
) -> None:
    assert planned(candidates, gib) == slots


def test_slots_of_running_vms_do_not_count_against_the_limit() -> None:
    four = [vm("small", f"vm-{number}") for number in range(4)]
    slots = planned(four, 56, max_slots=3)
    assert isinstance(slots, list)
    assert [gib for _, gib in slots] == [8, 8, 8, 8, 16, 8]


def test_what_running_vms_leave_is_limited() -> None:
    refusal = planned([vm("small")], 32, max_slots=1)
    assert refusal == SlotLimitExceeded(new_slots=2, limit=1).message


@given(
    flavors=st.lists(st.sampled_from(sorted(SIZES)), max_size=12),
    gib=st.integers(min_value=0, max_value=200),
    seed=st.randoms(use_true_random=False),
)
def test_adoption_covers_no_vm_twice_and_never_more_than_asked(
    flavors: list[str], gib: int, seed: object
) -> None:
    vms = [vm(flavor, f"vm-{number}") for number, flavor in enumerate(flavors)]
    adoptions = adopt_vms(vms, gib * GIB)
    shuffled = list(vms)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]  # a random.Random
    assert adopt_vms(shuffled, gib * GIB) == adoptions
    covered = [adoption.vm.vm_uuid for adoption in adoptions]
    assert len(covered) == len(set(covered))
    total = sum(adoption.memory_bytes for adoption in adoptions)
    assert total == min(gib * GIB, total)
    assert all(a.memory_bytes <= a.vm.flavor_memory_bytes for a in adoptions)
    if total < gib * GIB:
        assert len(adoptions) == len(vms)
