"""The pipelines of the capacity probes are a choice of the operator (spec liquid, 13.2, 13.5)."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, transaction

from capacity.figures.group_capacity import ensure_fresh, ensure_totals, refresh_group_capacity
from capacity.figures.probe_pipelines import current_probes, probes_fingerprint
from capacity.metrics import PROBE_FAILURES
from capacity.models import FlavorCapacity, GroupCapacity, Pipeline
from capacity.nova.pipelines import remove_pipeline, save_pipeline
from config.environment import ConfigurationError, load_environment
from hosts.models import Flavor, Host
from journal.actors import Actor
from scheduling.pipelines import PipelineSpec, StepParam, StepSpec
from scheduling.resources import GIB
from tests.factories import make_group, make_host, make_reservation, make_vm

pytestmark = pytest.mark.django_db(transaction=True)

OPERATOR = Actor(name="operator")
NAME = "probe"
GENERAL = "kvm-general-purpose-load-balancing"


def excluding(*hosts: str, **fields: Any) -> PipelineSpec:
    """Return a definition that only leaves out hosts, and looks at room."""
    return PipelineSpec(
        name=fields.pop("name", NAME),
        filters=(
            StepSpec(
                name="filter_exclude_hosts",
                params=(StepParam(key="excludedHosts", strings=hosts),),
            ),
            StepSpec(name="filter_has_enough_capacity"),
        ),
        **fields,
    )


def save(spec: PipelineSpec) -> None:
    save_pipeline(spec, actor=OPERATOR, request_id="req-1")


def choose(settings: Any, *, total: str = "", placeable: str = "") -> None:
    capacity = settings.HEADROOM.capacity.model_copy(
        update={"total_pipeline": total, "placeable_pipeline": placeable}
    )
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"capacity": capacity})


@pytest.fixture(autouse=True)
def region() -> None:
    """Two hosts of two VMs each; on h1 one is taken."""
    make_group(flavors=(("small", 4096, 2),))
    make_vm(host=make_host("h1", memory_gib=8, vcpus=4), memory_gib=4, vcpus=2)
    make_host("h2", memory_gib=8, vcpus=4)


def counted() -> tuple[int, int, int, int]:
    row = FlavorCapacity.objects.get()
    return (row.total_vm_slots, row.total_hosts, row.placeable_vms, row.placeable_hosts)


def row() -> GroupCapacity:
    return GroupCapacity.objects.get()


@pytest.mark.parametrize(
    ("total", "placeable", "wanted"),
    [
        pytest.param("", "", (4, 2, 3, 2), id="what slots pass"),
        pytest.param(NAME, "", (2, 1, 3, 2), id="total"),
        pytest.param("", NAME, (4, 2, 1, 1), id="placeable"),
        pytest.param(NAME, NAME, (2, 1, 1, 1), id="both"),
        pytest.param(GENERAL, GENERAL, (4, 2, 3, 2), id="the shipped one"),
    ],
)
def test_each_probe_is_made_with_the_filters_of_its_pipeline(
    settings: Any, total: str, placeable: str, wanted: tuple[int, int, int, int]
) -> None:
    save(excluding("h2"))
    choose(settings, total=total, placeable=placeable)
    ensure_fresh(["az-a"])
    assert counted() == wanted
    assert row().exclusively_free_slots == wanted[2]
    assert row().total_memory_bytes == wanted[0] * 4 * GIB


def test_room_is_counted_and_not_filtered(settings: Any) -> None:
    """A host that is full now still counts when empty, whatever the pipeline says of room."""
    save(excluding())
    choose(settings, total=NAME, placeable=NAME)
    make_reservation(Host.objects.get(name="h2"), memory_gib=8, vcpus=4)
    ensure_fresh(["az-a"])
    assert counted() == (4, 2, 1, 1)


def test_flavors_that_differ_in_extra_specs_are_told_apart(settings: Any) -> None:
    save(PipelineSpec(name=NAME, filters=(StepSpec(name="filter_capabilities"),)))
    choose(settings, total=NAME, placeable=NAME)
    make_group("other", flavors=(("arm", 4096, 2),))
    Flavor.objects.filter(name="arm").update(
        extra_specs={"quota:hw_version": "other", "capabilities:cpu_arch": "aarch64"}
    )
    ensure_fresh(["az-a"])
    slots = dict(FlavorCapacity.objects.values_list("flavor_name", "total_vm_slots"))
    assert slots == {"small": 4, "arm": 0}


@pytest.mark.parametrize("chosen", [True, False], ids=["chosen", "another pipeline"])
def test_a_changed_pipeline_makes_every_zone_stale(settings: Any, *, chosen: bool) -> None:
    """Spec liquid, 13.2: any pipeline change triggers."""
    save(excluding())
    choose(settings, placeable=NAME if chosen else "")
    ensure_fresh(["az-a"])
    assert [zone.outcome for zone in refresh_group_capacity()] == ["fresh"]
    save(excluding("h2"))
    assert [zone.outcome for zone in refresh_group_capacity()] == ["computed"]
    assert counted()[2] == (1 if chosen else 3)
    assert [zone.outcome for zone in refresh_group_capacity()] == ["fresh"]


def test_a_changed_choice_makes_every_zone_stale(settings: Any) -> None:
    save(excluding("h2"))
    ensure_fresh(["az-a"])
    choose(settings, total=NAME)
    ensure_totals("az-a")
    assert counted()[0] == 2


def with_bad_step() -> None:
    """Break the row behind the service's back, as an older release may have left it."""
    save(excluding("h2"))
    step = {"name": "filter_external_customer", "params": []}
    Pipeline.objects.filter(name=NAME).update(filters=[step])


def with_detectors() -> None:
    save(PipelineSpec(name=NAME, type="detector"))


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        pytest.param(lambda: None, "there is no pipeline probe", id="missing"),
        pytest.param(with_detectors, "pipeline probe has detectors, no filters", id="detectors"),
        pytest.param(with_bad_step, "pipeline probe: filter_external_customer: ", id="broken"),
    ],
)
@pytest.mark.parametrize("which", ["total", "placeable"])
def test_a_pipeline_that_cannot_be_run_keeps_the_old_numbers_and_says_why(
    settings: Any, which: str, prepare: Any, reason: str
) -> None:
    ensure_fresh(["az-a"])
    before = counted()
    prepare()
    choose(settings, **{which: NAME})
    make_host("h3", memory_gib=8, vcpus=4)
    failures = PROBE_FAILURES._value.get()
    (outcome,) = refresh_group_capacity()
    assert outcome.failed_groups == ("hana_1",)
    assert counted() == before
    assert (row().is_ready, row().ready_reason) == (False, "ReconcileFailed")
    assert row().ready_message.startswith(reason)
    assert PROBE_FAILURES._value.get() == failures + 1
    save(excluding())
    ensure_fresh(["az-a"])
    assert row().is_ready
    assert counted() == (6, 3, 5, 3)


def test_without_a_row_a_missing_pipeline_makes_none(settings: Any) -> None:
    """Spec liquid, 13.8: scheduler fails, no row yet."""
    choose(settings, total=NAME)
    ensure_fresh(["az-a"])
    assert not GroupCapacity.objects.exists()


def test_a_removed_pipeline_is_noticed(settings: Any) -> None:
    save(excluding("h2"))
    choose(settings, placeable=NAME)
    ensure_fresh(["az-a"])
    remove_pipeline(name=NAME, actor=OPERATOR, request_id="req-2")
    ensure_fresh(["az-a"])
    assert not row().is_ready
    assert counted()[2] == 1


def test_a_pipeline_that_cannot_judge_a_flavor_fails_its_group_alone(settings: Any) -> None:
    """Gathering candidates needs the flavor's hypervisor type (spec scheduling, 5.1)."""
    save(excluding(ignore_preselection=True))
    choose(settings, placeable=NAME)
    make_group("kvm", flavors=(("typed", 4096, 2),))
    Flavor.objects.filter(name="small").update(extra_specs={"quota:hw_version": "hana_1"})
    Flavor.objects.filter(name="typed").update(
        extra_specs={"quota:hw_version": "kvm", "capabilities:hypervisor_type": "qemu"}
    )
    (outcome,) = refresh_group_capacity()
    assert outcome.failed_groups == ("hana_1",)
    assert list(GroupCapacity.objects.values_list("group_name", "is_ready")) == [("kvm", True)]


def test_by_default_no_pipeline_is_read(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert not current_probes().problem


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        pytest.param(
            {"MIN_RECONCILE_INTERVAL_SECONDS": "300"}, "must be below", id="minimum as long"
        ),
        pytest.param({"RECONCILE_INTERVAL_SECONDS": "20"}, "must be below", id="floor too short"),
        pytest.param({"TOTAL_PIPELINE": "x" * 256}, "at most 255", id="no pipeline has this name"),
        pytest.param({"TOTAL_PIPELINES": "x"}, "did you mean", id="unknown name"),
    ],
)
def test_bad_settings_stop_the_start_with_one_line(variables: dict[str, str], text: str) -> None:
    environ = {f"HEADROOM_CAPACITY__{name}": entry for name, entry in variables.items()}
    with pytest.raises(ConfigurationError, match=text) as raised:
        load_environment({**environ, "HEADROOM_DEBUG": "1"})
    assert "\n" not in str(raised.value)


def test_a_late_commit_cannot_bring_the_fingerprint_of_the_pipelines_back() -> None:
    """A plain sum of numbers was the same after one had fallen and another had grown."""

    def set_numbers(first: int, second: int) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            Pipeline.objects.filter(name="probe-1").update(changed_xid=first)
            Pipeline.objects.filter(name="probe-2").update(changed_xid=second)

    for number in (1, 2):
        save(excluding("h1", name=f"probe-{number}"))
    set_numbers(10, 20)
    before = probes_fingerprint()
    set_numbers(18, 12)
    assert probes_fingerprint() != before
