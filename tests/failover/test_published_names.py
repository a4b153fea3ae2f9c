"""Every name that the reference publishes has its counterpart (spec failover, 2, 4)."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import Any

import pytest

from failover import constants
from failover.conf import FailoverConfig
from hosts.vm_source import DatabaseVMSource, VMSource
from scheduling.shipped_pipelines import SHIPPED
from tests.docs.tour import ROOT

PAGE = ROOT / "docs" / "failover-names.md"
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)
NAME_IN_REMARKS = re.compile(r"`((?:failover|hosts|journal)\.[\w.]+)`")
ARGUMENT = re.compile(r"([\w.]+)\((\w+)=\)")

CONTROLLER = "FailoverReservationController"
PUBLISHED = {
    "PipelineReuseFailoverReservation",
    "PipelineNewFailoverReservation",
    "PipelineAcknowledgeFailoverReservation",
    "CheckVMsStillEligible",
    "FindEligibleReservations",
    "IsVMEligibleForReservation",
    "DependencyGraph",
    "ValidateFailoverReservationResources",
    "LoggerFromContext",
    "WithNewGlobalRequestID",
    "DBVMSource",
    "DBVMSource.NovaReader",
    "NewDBVMSource",
    "DBVMSource.GetVM",
    "DBVMSource.ListVMs",
    "DBVMSource.ListVMsOnHypervisors",
    "VMSource",
    "VM",
    "FailoverConfig",
    "DefaultConfig",
    "ApplyDefaults",
    CONTROLLER,
    f"{CONTROLLER}.VMSource",
    f"{CONTROLLER}.Config",
    f"{CONTROLLER}.SchedulerClient",
    f"{CONTROLLER}.Recorder",
    f"{CONTROLLER}.Monitor",
    "NewFailoverReservationController",
    f"{CONTROLLER}.Reconcile",
    f"{CONTROLLER}.ReconcilePeriodic",
    f"{CONTROLLER}.SetupWithManager",
    f"{CONTROLLER}.Start",
}
VM_FIELDS = {
    "UUID",
    "FlavorName",
    "ProjectID",
    "CurrentHypervisor",
    "AvailabilityZone",
    'Resources["memory"]',
    'Resources["vcpus"]',
    "FlavorExtraSpecs",
    "Name",
    "Status",
    "CreatedAt",
    "DiskGB",
    "OSType",
}
DEFAULTS: dict[str, Any] = {  # Any: values of several types
    "flavorFailoverRequirements": {"*": 2},
    "reconcileInterval": timedelta(seconds=30),
    "shortReconcileInterval": timedelta(milliseconds=100),
    "minSuccessForShortInterval": 1,
    "maxFailuresForShortInterval": 99,
    "maxVMsToProcess": 30,
    "vmSelectionRotationInterval": 4,
    "limitOneNewReservationPerHypervisor": True,
    "trustHypervisorLocation": False,
    "revalidationInterval": timedelta(minutes=30),
    "useFlavorGroupResources": False,
    "creator": "cortex-failover-controller",
    "datasourceName": "nova-servers",
    "schedulerURL": "http://localhost:8080/scheduler/nova/external",
}
SHIPPED_IN_THE_CHART: dict[str, tuple[Any, Any]] = {  # Any: values of several types
    "reconcileInterval": ("5m", timedelta(minutes=5)),
    "shortReconcileInterval": ("1m", timedelta(minutes=1)),
    "minSuccessForShortInterval": (0, 0),
    "maxFailuresForShortInterval": (99, 99),
    "maxVMsToProcess": (50, 50),
    "vmSelectionRotationInterval": (3, 3),
    "limitOneNewReservationPerHypervisor": (False, False),
    "trustHypervisorLocation": (True, True),
    "revalidationInterval": ("30m", timedelta(minutes=30)),
    "useFlavorGroupResources": (True, True),
    "flavorFailoverRequirements": ({"*": 2}, {"*": 2}),
    "creator": ("me", "me"),
    "datasourceName": ("nova-servers", "nova-servers"),
    "schedulerURL": ("http://scheduler/", "http://scheduler/"),
}


@cache
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def counterparts() -> dict[str, str]:
    return dict(ROW.findall(page()))


def found(path: str) -> object:
    """Return what a dotted path names: the longest module of it, then attributes."""
    words = path.split(".")
    for length in range(len(words), 0, -1):
        try:
            thing: object = import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            thing = getattr(thing, word)
        return thing
    raise LookupError(path)


@pytest.mark.parametrize("name", sorted(counterparts()))
def test_counterpart_of_a_published_name_exists(name: str) -> None:
    path = counterparts()[name]
    argument = ARGUMENT.fullmatch(path)
    if argument is None:
        assert found(path) is not None
        return
    function = found(argument[1])
    assert callable(function)
    assert argument[2] in inspect.signature(function).parameters


@pytest.mark.parametrize("path", sorted(set(NAME_IN_REMARKS.findall(page()))))
def test_name_in_a_remark_exists(path: str) -> None:
    assert found(path) is not None


def test_page_lists_every_published_name_and_nothing_else() -> None:
    assert set(counterparts()) == PUBLISHED | VM_FIELDS | set(DEFAULTS)


def test_a_name_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        found("failover.eligibility.no_such_name")
    with pytest.raises(LookupError):
        found("nowhere.at.all")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        pytest.param("PIPELINE_REUSE", "kvm-valid-host-reuse-failover-reservation", id="reuse"),
        pytest.param("PIPELINE_NEW", "kvm-new-failover-reservation", id="new"),
        pytest.param("PIPELINE_ACKNOWLEDGE", "kvm-acknowledge-failover-reservation", id="check"),
        pytest.param("PIPELINE_GENERAL", "kvm-general-purpose-load-balancing", id="general"),
        pytest.param("PIPELINE_HANA", "kvm-hana-bin-packing", id="hana"),
    ],
)
def test_pipelines_keep_their_names_and_can_be_run(name: str, words: str) -> None:
    assert getattr(constants, name) == words
    assert words in SHIPPED


@pytest.mark.parametrize("key", sorted(DEFAULTS))
def test_key_has_its_documented_default(key: str) -> None:
    name = counterparts()[key].rpartition(".")[2]
    assert getattr(FailoverConfig.defaults(), name) == DEFAULTS[key]
    assert getattr(FailoverConfig().with_defaults(), name) == DEFAULTS[key]


@pytest.mark.parametrize("key", sorted(SHIPPED_IN_THE_CHART))
def test_key_is_read_under_its_published_name(key: str) -> None:
    given, expected = SHIPPED_IN_THE_CHART[key]
    name = counterparts()[key].rpartition(".")[2]
    config = FailoverConfig.from_published({key: given}).with_defaults()
    assert getattr(config, name) == expected


def test_every_field_of_the_configuration_is_published() -> None:
    names = {counterparts()[key].rpartition(".")[2] for key in DEFAULTS}
    assert names == {field.name for field in fields(FailoverConfig)}


def test_source_of_vms_has_every_operation() -> None:
    operations = {name for name, _ in inspect.getmembers(VMSource, inspect.isfunction)}
    wanted = {
        "list_vms",
        "list_vms_by_project",
        "list_vms_on_hosts",
        "get_vm",
        "is_server_active",
        "get_deleted_vm_info",
    }
    assert wanted <= operations
    assert all(callable(getattr(DatabaseVMSource, name)) for name in wanted)
