from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduling.detectors import AvoidHighSteal, Detection, StealFigure
from scheduling.engine import schedule
from scheduling.intents import Intent
from scheduling.knowledge import HostContention, HostUtilisation, Knowledge
from scheduling.pipelines import (
    InvalidPipelineError,
    PipelineSpec,
    StepParam,
    StepSpec,
    check_pipeline,
    compile_pipeline,
    load_pipeline,
)
from scheduling.shipped_pipelines import CURRENT, LEGACY, SHIPPED
from scheduling.step_catalogue import FILTERS, WEIGHERS, reservation_kinds
from scheduling.table import HostTable

from .worlds import ask, gib, readable, roomy

KNOWLEDGE = Knowledge(
    utilisation={
        "1": HostUtilisation(memory_bytes=100, used_memory_bytes=90, vcpus=1, used_vcpus=1)
    },
    long_term_contention={"1": HostContention(average_percent=1.0, maximum_percent=1.0)},
    short_term_contention={"1": HostContention(average_percent=1.0, maximum_percent=1.0)},
    noisiness={"p": {"1": 1.0}},
)


def step(name: str, *params: StepParam, **fields: Any) -> StepSpec:
    return StepSpec(name=name, params=params, **fields)


def spec(*filters: StepSpec, **fields: Any) -> PipelineSpec:
    return PipelineSpec(name="p", filters=filters, **fields)


QUOTA, AZ = "filter_quota_enforcement", "filter_correct_az"
BINPACK = "kvm_binpack"
ENFORCE = StepParam(key="enforce", boolean=True)
MEMORY = StepParam(key="resourceWeights", number_map={"memory": 1.0})


@pytest.mark.parametrize(
    ("definition", "problems"),
    [
        pytest.param(spec(step(QUOTA, ENFORCE)), (), id="fine"),
        pytest.param(
            spec(step(QUOTA, ENFORCE, ENFORCE)),
            (f"filter {QUOTA}: duplicate parameter enforce",),
            id="duplicate key",
        ),
        pytest.param(
            spec(step(QUOTA, StepParam(key="enforce"))),
            (f"filter {QUOTA}: parameter enforce needs exactly one value, not 0",),
            id="no value",
        ),
        pytest.param(
            spec(step(QUOTA, StepParam(key="enforce", boolean=True, integer=1))),
            (f"filter {QUOTA}: parameter enforce needs exactly one value, not 2",),
            id="two values",
        ),
        pytest.param(
            spec(step(QUOTA, StepParam(key="odd", boolean=True))),
            (f"filter {QUOTA}: unknown parameter odd",),
            id="unknown key",
        ),
        pytest.param(
            spec(step(QUOTA, StepParam(key="enforce", string="true"))),
            (f"filter {QUOTA}: parameter enforce must be a boolean, not a string",),
            id="wrong type",
        ),
        pytest.param(
            spec(step("filter_external_customer")),
            ("filter filter_external_customer: at least one domain name prefix is needed",),
            id="missing prefixes",
        ),
        pytest.param(
            spec(
                step(
                    "filter_has_enough_capacity",
                    StepParam(key="ignoredReservationTypes", strings=("odd",)),
                )
            ),
            ("filter filter_has_enough_capacity: unknown reservation type: odd",),
            id="unknown reservation type",
        ),
        pytest.param(
            spec(
                step(QUOTA, StepParam(key="a", string="")),
                weighers=(step(BINPACK), step("kvm_prefer_smaller_hosts", MEMORY)),
            ),
            (
                f"filter {QUOTA}: unknown parameter a",
                f"weigher {BINPACK}: kvm_binpack needs weights above 0",
            ),
            id="all messages",
        ),
        pytest.param(
            spec(detectors=(step("avoid_high_steal_pct"),)),
            ("a filter-weigher pipeline has no detectors",),
            id="detector among filters",
        ),
        pytest.param(
            spec(step(AZ), type="detector"),
            ("a detector pipeline has no filters or weighers",),
            id="filter among detectors",
        ),
        pytest.param(spec(type="odd"), ("unknown pipeline type: odd",), id="unknown type"),
        pytest.param(
            spec(scheduling_domain="odd"), ("unknown scheduling domain: odd",), id="unknown domain"
        ),
        pytest.param(
            spec(
                type="detector",
                detectors=(
                    step(
                        "avoid_high_steal_pct",
                        StepParam(key="maxStealPctOverObservedTimeSpan", integer=-1),
                    ),
                ),
            ),
            (
                (
                    "detector avoid_high_steal_pct: maxStealPctOverObservedTimeSpan must not be"
                    " negative"
                ),
            ),
            id="negative threshold",
        ),
        pytest.param(
            spec(
                weighers=(
                    step(
                        "vmware_anti_affinity_noisy_projects",
                        StepParam(key="avgCPUUsageUpperBound", number=0.0),
                    ),
                )
            ),
            ("weigher vmware_anti_affinity_noisy_projects: lower and upper bounds must differ",),
            id="equal bounds",
        ),
    ],
)
def test_admission_rejects_with_every_reason(
    definition: PipelineSpec, problems: tuple[str, ...]
) -> None:
    admission = check_pipeline(definition)
    assert (admission.problems, admission.warnings) == (problems, ())
    assert admission.is_accepted is not bool(problems)
    if problems:
        with pytest.raises(InvalidPipelineError, match="^" + problems[0].replace("(", ".")):
            compile_pipeline(definition)


def test_unknown_step_is_a_warning_and_left_out() -> None:
    definition = spec(step("filter_odd"), step(AZ), weighers=(step("odd_weigher"),))
    admission = check_pipeline(definition)
    assert admission.is_accepted
    assert admission.warnings == (
        "unknown filter filter_odd will be ignored",
        "unknown weigher odd_weigher will be ignored",
    )
    loaded = load_pipeline(definition)
    assert loaded.pipeline is not None
    assert [one.name for one in loaded.pipeline.filters] == [AZ]
    assert loaded.conditions["Ready"][0]
    assert loaded.conditions["AllStepsIndexed"] == (
        False,
        "PipelineContainsUnknownSteps",
        "unknown steps: filter_odd, odd_weigher",
    )


@pytest.mark.parametrize(
    ("filters", "weighers", "is_usable", "reasons"),
    [
        pytest.param(
            ("filter_correct_az",),
            (),
            True,
            {"Ready": True, "AllStepsReady": True, "AllStepsIndexed": True},
            id="everything fine",
        ),
        pytest.param(
            ("filter_external_customer",),
            (),
            False,
            {
                "Ready": "PipelineInitFailed",
                "AllStepsReady": "PipelineInitFailed",
                "AllStepsIndexed": True,
            },
            id="a filter fails to initialise",
        ),
        pytest.param(
            ("filter_correct_az",),
            ("kvm_binpack",),
            True,
            {"Ready": True, "AllStepsReady": "SomeStepsNotReady", "AllStepsIndexed": True},
            id="a weigher fails to initialise",
        ),
        pytest.param(
            ("filter_odd",),
            ("odd",),
            True,
            {
                "Ready": True,
                "AllStepsReady": True,
                "AllStepsIndexed": "PipelineContainsUnknownSteps",
            },
            id="an unknown step",
        ),
    ],
)
def test_loading_a_definition(
    filters: tuple[str, ...],
    weighers: tuple[str, ...],
    is_usable: bool,
    reasons: dict[str, bool | str],
) -> None:
    loaded = load_pipeline(spec(*map(step, filters), weighers=tuple(map(step, weighers))))
    assert (loaded.pipeline is not None) is is_usable
    found = {name: is_true or reason for name, (is_true, reason, _) in loaded.conditions.items()}
    assert found == reasons


def test_filter_that_fails_makes_the_pipeline_unusable() -> None:
    loaded = load_pipeline(spec(step("filter_external_customer"), step(AZ)))
    assert loaded.pipeline is None
    why = "filter_external_customer: at least one domain name prefix is needed"
    message = f"1 steps failed: {why}"
    assert loaded.conditions["Ready"] == (False, "PipelineInitFailed", message)
    assert loaded.conditions["AllStepsReady"] == (False, "PipelineInitFailed", message)


def test_weigher_that_fails_is_left_out() -> None:
    loaded = load_pipeline(spec(step(AZ), weighers=(step("vmware_binpack", MEMORY), step(BINPACK))))
    assert loaded.pipeline is not None
    assert loaded.pipeline.weighers == ()
    assert loaded.conditions["Ready"][0]
    assert loaded.conditions["AllStepsReady"] == (
        False,
        "SomeStepsNotReady",
        (
            "2 steps failed: vmware_binpack: knowledge host-utilization is missing or empty;"
            " kvm_binpack: kvm_binpack needs weights above 0"
        ),
    )


def test_multiplier_of_the_definition_wins() -> None:
    weigher = step(BINPACK, MEMORY, multiplier=-2.5)
    pipeline = compile_pipeline(spec(weighers=(weigher,), version=7, ignore_preselection=True))
    assert pipeline.weighers[0].multiplier == -2.5
    assert (pipeline.version, pipeline.ignore_preselection) == (7, True)


def test_reservation_types_have_two_spellings() -> None:
    assert reservation_kinds(("FailoverReservation", "committed")) == {"failover", "committed"}


F16 = (
    "status_conditions correct_az host_instructions image_properties capabilities"
    " has_requested_traits external_customer has_accelerators instance_group_affinity"
    " instance_group_anti_affinity has_enough_capacity allowed_projects aggregate_metadata"
    " live_migratable requested_destination quota_enforcement"
)
W5 = {
    "kvm_prefer_smaller_hosts": 1.0,
    "kvm_instance_group_soft_affinity": 1.0,
    "kvm_binpack": -1.0,
    "kvm_failover_evacuation": 1.0,
    "kvm_committed_resource_reservation": 1.0,
}
PACKING = {**W5, "kvm_binpack": 1.0}
CONTENDED = {f"vmware_avoid_{term}_term_contended_hosts": 1.0 for term in ("long", "short")}
EXPECTED: dict[str, tuple[bool, str, dict[str, float]]] = {
    "kvm-general-purpose-load-balancing": (True, F16, W5),
    "kvm-hana-bin-packing": (True, F16, PACKING),
    "vmware-general-purpose-load-balancing": (False, "", {"vmware_binpack": -1.0, **CONTENDED}),
    "vmware-hana-bin-packing": (False, "", {}),
    "kvm-descheduler": (False, "", {}),
    "kvm-valid-host-reuse-failover-reservation": (
        False,
        (
            "status_conditions host_instructions correct_az has_requested_traits has_accelerators"
            " external_customer allowed_projects capabilities"
        ),
        {},
    ),
    "kvm-new-failover-reservation": (
        True,
        (
            "status_conditions host_instructions correct_az has_enough_capacity"
            " has_requested_traits"
            " has_accelerators allowed_projects capabilities instance_group_affinity"
            " instance_group_anti_affinity live_migratable requested_destination"
        ),
        {
            "kvm_prefer_smaller_hosts": 1.0,
            "kvm_instance_group_soft_affinity": 1.0,
            "kvm_binpack": -1.0,
        },
    ),
    "kvm-acknowledge-failover-reservation": (
        False,
        (
            "status_conditions host_instructions correct_az has_enough_capacity"
            " has_requested_traits"
            " has_accelerators external_customer allowed_projects capabilities"
        ),
        {"kvm_failover_evacuation": 1.0},
    ),
    "kvm-report-capacity": (
        True,
        "status_conditions correct_az has_enough_capacity has_requested_traits capabilities",
        {},
    ),
    "kvm-general-purpose-load-balancing-no-history": (True, F16, W5),
    "kvm-hana-bin-packing-no-history": (True, F16, PACKING),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_shipped_pipeline_has_the_documented_steps_and_runs(name: str) -> None:
    ignores, filters, weighers = EXPECTED[name]
    definition = SHIPPED[name]
    assert check_pipeline(definition) == check_pipeline(PipelineSpec(name="nothing wrong"))
    pipeline = compile_pipeline(definition, KNOWLEDGE)
    assert pipeline.ignore_preselection is ignores
    assert [one.name for one in pipeline.filters] == [f"filter_{one}" for one in filters.split()]
    assert {one.name: one.multiplier for one in pipeline.weighers} == weighers
    table = HostTable.from_rows([roomy("1", zone="az-1"), roomy("2", zone="az-2")])
    request = ask(zone="az-1", extra_specs={"capabilities:hypervisor_type": "QEMU"})
    decision = schedule(table, request, pipeline, max_candidates=0)
    names = [candidate.host_name for candidate in decision.top]
    assert names == ["1"] if filters else sorted(names) == ["1", "2"]


IAAS = {"filter_external_customer": {"domainNamePrefixes": ("iaas-",)}}
SHADOW = {"filter_quota_enforcement": {"enforce": False}}
BY_MEMORY = {"resourceWeights": {"memory": 1.0}}
W5_PARAMS: dict[str, dict[str, Any]] = {
    "kvm_prefer_smaller_hosts": BY_MEMORY,
    "kvm_binpack": BY_MEMORY,
}
CONTENTION = {
    f"{figure}CPUContention{end}": number
    for figure, lowest in (("avg", -0.75), ("max", -0.25))
    for end, number in {
        "LowerBound": 0.0,
        "UpperBound": 10.0,
        "ActivationLowerBound": 0.0,
        "ActivationUpperBound": lowest,
    }.items()
}
LOCKED = {"filter_has_enough_capacity": {"lockReserved": True}}
UNLOCKED = {"filter_has_enough_capacity": {"lockReserved": False}}
EXPECTED_PARAMS: dict[str, dict[str, dict[str, Any]]] = {
    "kvm-general-purpose-load-balancing": {**IAAS, **SHADOW, **W5_PARAMS},
    "kvm-hana-bin-packing": {**IAAS, **SHADOW, **W5_PARAMS},
    "vmware-general-purpose-load-balancing": {
        "vmware_binpack": BY_MEMORY,
        **dict.fromkeys(CONTENDED, CONTENTION),
    },
    "vmware-hana-bin-packing": {},
    "kvm-descheduler": {"avoid_high_steal_pct": {"maxStealPctOverObservedTimeSpan": 20.0}},
    "kvm-valid-host-reuse-failover-reservation": IAAS,
    "kvm-new-failover-reservation": {**LOCKED, **W5_PARAMS},
    "kvm-acknowledge-failover-reservation": {**IAAS, **LOCKED},
    "kvm-report-capacity": {
        "filter_has_enough_capacity": {
            "ignoreAllocations": True,
            "ignoredReservationTypes": (
                "CommittedResourceReservation",
                "FailoverReservation",
            ),
        }
    },
    "kvm-general-purpose-load-balancing-no-history": {**IAAS, **SHADOW, **UNLOCKED, **W5_PARAMS},
    "kvm-hana-bin-packing-no-history": {**IAAS, **SHADOW, **UNLOCKED, **W5_PARAMS},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_shipped_steps_have_the_documented_parameters(name: str) -> None:
    definition = SHIPPED[name]
    steps = (*definition.filters, *definition.weighers, *definition.detectors)
    found = {
        one.name: {param.key: param.given()[0][1] for param in one.params}
        for one in steps
        if one.params
    }
    assert found == EXPECTED_PARAMS[name]


def test_all_shipped_pipelines_are_expected() -> None:
    assert set(EXPECTED) == set(SHIPPED)
    assert len(CURRENT) + len(LEGACY) == len(SHIPPED)
    assert {one.name for one in LEGACY if one.create_history} == set()


def test_report_capacity_ignores_vms_and_reservations() -> None:
    host = roomy("1", effective=gib(8, 8), allocated=gib(4, 4), committed=gib(4, 4))
    pipeline = compile_pipeline(SHIPPED["kvm-report-capacity"])
    request = ask(8, 8, extra_specs={"capabilities:hypervisor_type": "ch"})
    host = replace(host, hypervisor_type="ch")
    assert schedule(HostTable.from_rows([host]), request, pipeline).host_name == "1"


def test_every_step_of_the_specification_is_in_the_catalogue() -> None:
    assert len(FILTERS) == 16 + 1 + 2
    assert len(WEIGHERS) == 5 + 1 + 4


def test_host_order_of_nova_is_kept_without_weighers() -> None:
    pipeline = compile_pipeline(SHIPPED["vmware-hana-bin-packing"])
    weights = {"a": 50.0, "b": 55.0, "c": 60.0}
    for number in range(50):
        request = ask(request_key=f"vm-{number}", hosts=tuple(weights), weights=weights)
        decision = schedule(HostTable.from_rows([]), request, pipeline, max_candidates=0)
        assert [one.host_name for one in decision.top] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("fields", "failure"),
    [
        ({}, "missing hypervisor_type"),
        (
            {"extra_specs": {"capabilities:hypervisor_type": "VMware vCenter Server"}},
            "cannot gather for this type: VMware vCenter Server",
        ),
        ({"extra_specs": {"capabilities:hypervisor_type": ""}}, "cannot gather for this type: "),
        ({"extra_specs": {"capabilities:hypervisor_type": "QEMU"}}, ""),
        ({"extra_specs": {"capabilities:hypervisor_type": "<or> CH <or> QEMU"}}, ""),
        (
            {"extra_specs": {"capabilities:hypervisor_type": "<or> CH <or> ironic"}},
            "cannot gather for this type: <or> CH <or> ironic",
        ),
        (
            {"extra_specs": {"capabilities:hypervisor_type": "<or>"}},
            "cannot gather for this type: <or>",
        ),
        ({"extra_specs": {"capabilities:hypervisor_type": "ch"}}, ""),
        ({"extra_specs": {"capabilities:hypervisor_type": "KVM"}}, ""),
        ({"hypervisor_type": "ch"}, ""),
        ({"hypervisor_type": "ironic"}, "cannot gather for this type: ironic"),
    ],
    ids=readable,
)
def test_candidates_are_gathered_for_kvm_only(fields: dict[str, Any], failure: str) -> None:
    pipeline = compile_pipeline(spec(ignore_preselection=True))
    table = HostTable.from_rows([roomy("1"), roomy("2")])
    request = ask(hosts=("9",), weights={"1": 9.0}, intent=Intent.CREATE, **fields)
    decision = schedule(table, request, pipeline, max_candidates=0)
    assert decision.failure == failure
    assert {(one.host_name, one.score) for one in decision.top} == (
        set() if failure else {("1", 0.0), ("2", 0.0)}
    )


def test_hosts_can_be_restricted_before_filtering() -> None:
    pipeline = compile_pipeline(spec(ignore_preselection=True))
    table = HostTable.from_rows([roomy("1"), roomy("2")])
    request = ask(hypervisor_type="qemu", restrict_to_hosts=frozenset({"2", "x"}))
    assert schedule(table, request, pipeline).host_name == "2"


def test_detector_reports_vms_above_the_threshold() -> None:
    figures = [
        StealFigure(vm_uuid="a", host="h", maximum_percent=20.0),
        StealFigure(vm_uuid="b", host="h", maximum_percent=33.333),
    ]
    reason = "steal percentage 33.33 % above 20.00 %"
    found = AvoidHighSteal(threshold_percent=20.0).detect(figures)
    assert found == (Detection(vm_uuid="b", host="h", reason=reason),)
    assert AvoidHighSteal(threshold_percent=0.0).detect(figures) == ()


def test_plug_ins_outside_the_shipped_pipelines_take_their_parameters() -> None:
    weights = StepParam(key="resourceWeights", number_map={"cpu": 1.0})
    definition = spec(
        step("filter_exclude_hosts", StepParam(key="excludedHosts", strings=("1",))),
        weighers=(
            step(
                "kvm_failover_reservation_consolidation",
                StepParam(key="totalCountWeight", integer=2),
                StepParam(key="sameSpecPenalty", number=0.5),
            ),
            step("vmware_binpack", weights),
        ),
    )
    table = HostTable.from_rows([roomy("1"), roomy("2")])
    decision = schedule(table, ask(), compile_pipeline(definition, KNOWLEDGE), max_candidates=0)
    assert [one.host_name for one in decision.top] == ["2"]
