from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import OperationalError
from pydantic import SecretStr

from capacity.models import Pipeline, Reservation, ReservationKind, SchedulingDecision
from capacity.services.pipelines import save_pipeline
from config.environment import AccessToken
from hosts.models import Host
from journal.actors import Actor
from journal.errors import Busy
from journal.models import AuditEntry
from scheduling.pipelines import PipelineSpec, StepParam, StepSpec
from tests.api.conftest import Configure
from tests.api.liquid_client import ADMIN, MEMBER, VIEWER
from tests.api.scheduler_client import (
    DATA,
    SCHEDULER,
    NovaClient,
    assert_error,
    recorded_request,
)
from tests.factories import make_host, make_hosts, make_reservation

pytestmark = pytest.mark.django_db
recorded_in_rows = pytest.mark.django_db(transaction=True)  # decisions are written on commit

READ_ONLY = {
    "read_only": True,
    "skip_history": True,
    "skip_inflight": True,
    "skip_committed_resource_tracking": True,
}
TYPE = "capabilities:hypervisor_type"
HANA = "trait:CUSTOM_HANA_EXCLUSIVE_HOST"
VM_UUID = "e814cbde-0481-44a3-8e59-062b2298952f"
OPERATOR = Actor(name="operator")


@pytest.fixture
def nova(configure: Configure) -> NovaClient:
    tokens = (
        (SCHEDULER, "nova", "cloud_resource_scheduler"),
        (ADMIN, "limes", "cloud_resource_admin"),
        (VIEWER, "viewer", "cloud_resource_viewer"),
        (MEMBER, "member", "member"),
    )
    configure(
        auth="token",
        tokens=tuple(
            AccessToken(token=SecretStr(token), name=name, roles=(role,))
            for token, name, role in tokens
        ),
    )
    return NovaClient()


@pytest.fixture
def scheduler_settings(settings: Any) -> Any:
    def change(**fields: Any) -> None:
        current = settings.HEADROOM
        scheduler = current.scheduler.model_copy(update=fields)
        settings.HEADROOM = current.model_copy(update={"scheduler": scheduler})

    return change


def in_flight() -> list[str]:
    rows = Reservation.objects.filter(kind=ReservationKind.IN_FLIGHT)
    return sorted(rows.values_list("target_host__name", flat=True))


def save(name: str, **fields: Any) -> None:
    save_pipeline(PipelineSpec(name=name, **fields), actor=OPERATOR, request_id="req-1")


# -- answers


@recorded_in_rows
def test_the_recorded_request_of_nova_is_answered_with_hosts_of_its_own(nova: NovaClient) -> None:
    body = recorded_request()
    names = [entry["host"] for entry in body["hosts"]]
    for name in names:
        make_host(name, zone=name[-4:], memory_gib=256)
    hosts = nova.hosts(body)
    assert len(hosts) == 3
    assert set(hosts) <= set(names)
    assert in_flight() == sorted(hosts)
    decision = SchedulingDecision.objects.get()
    assert decision.is_successful
    assert decision.target_host_name == hosts[0]
    assert decision.pipeline_name == "kvm-general-purpose-load-balancing"
    assert decision.pipeline_version == 1
    assert decision.request_id == "req-0221e2c2-ffd7-4894-b246-cbcfd1028568"
    assert (decision.vm_uuid, decision.hosts_in) == (VM_UUID, 9)


@recorded_in_rows
def test_no_suitable_host_is_an_empty_list_and_a_decision(nova: NovaClient) -> None:
    make_hosts(3, memory_gib=2)
    assert nova.hosts() == []
    assert in_flight() == []
    decision = SchedulingDecision.objects.get()
    assert not decision.is_successful
    assert decision.target_host_name == ""


def test_the_same_request_gives_the_same_order(nova: NovaClient) -> None:
    make_hosts(3)
    answers = [nova.hosts(options=READ_ONLY) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert sorted(answers[0]) == ["h1", "h2", "h3"]


@recorded_in_rows
def test_a_read_only_run_writes_nothing(nova: NovaClient) -> None:
    make_hosts(3)
    audited = AuditEntry.objects.count()
    assert len(nova.hosts(options=READ_ONLY)) == 3
    assert in_flight() == []
    assert not SchedulingDecision.objects.exists()
    assert AuditEntry.objects.count() == audited


@recorded_in_rows
@pytest.mark.parametrize(
    ("option", "held", "recorded"),
    [
        ("skip_inflight", 0, True),
        ("skip_history", 3, False),
        ("skip_committed_resource_tracking", 3, True),
    ],
)
def test_a_skip_option_skips_that_alone(
    nova: NovaClient, option: str, held: int, *, recorded: bool
) -> None:
    make_hosts(3)
    assert len(nova.hosts(options={option: True})) == 3
    assert len(in_flight()) == held
    assert SchedulingDecision.objects.exists() is recorded


def test_nova_gets_and_holds_three_candidates_unless_it_asks_otherwise(nova: NovaClient) -> None:
    make_hosts(5)
    offered = tuple(f"h{number}" for number in range(1, 6))
    assert len(nova.hosts(offered=offered)) == 3
    assert len(in_flight()) == 3
    assert len(nova.hosts(offered=offered, options={"max_candidates": 1})) == 1
    assert len(in_flight()) == 1
    assert len(nova.hosts(offered=offered, options={"skip_inflight": True})) == 5


@pytest.mark.parametrize(
    ("limit", "count"), [(0, 4), (1, 1), (2, 2), (10, 4)], ids=["0", "1", "2", "10"]
)
def test_max_candidates_keeps_the_best(nova: NovaClient, limit: int, count: int) -> None:
    weights = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    hosts = nova.hosts(
        offered=tuple(weights),
        weights=weights,
        pipeline="vmware-hana-bin-packing",
        options={**READ_ONLY, "max_candidates": limit},
    )
    assert hosts == list(weights)[:count]


def test_without_weighers_novas_own_order_is_kept(nova: NovaClient) -> None:
    weights = {"a": 50.0, "b": 55.0, "c": 60.0}
    for _ in range(3):
        hosts = nova.hosts(
            offered=tuple(weights),
            weights=weights,
            pipeline="vmware-hana-bin-packing",
            options=READ_ONLY,
        )
        assert hosts == ["c", "b", "a"]


def test_a_vm_without_uuid_is_answered_and_holds_nothing(nova: NovaClient) -> None:
    make_hosts(5)
    hosts = nova.hosts(instance_uuid=None, offered=("h1", "h2", "h3", "h4"))
    assert len(hosts) == 3
    assert in_flight() == []


def test_a_retry_is_not_blocked_by_its_own_hosts(nova: NovaClient) -> None:
    make_hosts(3, memory_gib=4, vcpus=1)
    assert sorted(nova.hosts()) == ["h1", "h2", "h3"]
    assert sorted(nova.hosts()) == ["h1", "h2", "h3"]
    other = nova.hosts(instance_uuid="11111111-0481-44a3-8e59-062b2298952f")
    assert other == []


# -- limiting to the request


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (("h1", "h2", "h3"), {"h1", "h2", "h3"}),
        (("h1", "h3"), {"h1", "h3"}),
        (("h4",), set()),
        ((), set()),
    ],
)
def test_the_answer_has_hosts_of_the_request_only(
    nova: NovaClient, offered: tuple[str, ...], expected: set[str]
) -> None:
    make_hosts(3)
    assert set(nova.hosts(offered=offered)) == expected
    assert set(in_flight()) == expected


def test_all_candidates_are_answered_when_the_limit_is_off(
    nova: NovaClient, scheduler_settings: Any
) -> None:
    make_hosts(3)
    scheduler_settings(nova_limit_hosts_to_request=False)
    assert sorted(nova.hosts(offered=("h1",))) == ["h1", "h2", "h3"]


def test_a_host_listed_for_several_nodes_counts_once(nova: NovaClient) -> None:
    make_hosts(2)
    hosts = [{"host": "h1", "hypervisor_hostname": f"node-{number}"} for number in range(3)]
    assert nova.hosts(hosts=hosts, weights={"h1": 0.0}) == ["h1"]


# -- evacuation


def test_the_best_hosts_of_an_evacuation_are_shuffled_by_the_vm(
    nova: NovaClient, scheduler_settings: Any
) -> None:
    offered = ("a", "b", "c", "d")
    weights = {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}
    asked: dict[str, Any] = {
        "offered": offered,
        "weights": weights,
        "pipeline": "vmware-hana-bin-packing",
        "options": READ_ONLY,
        "hints": {"_nova_check_type": ["evacuate"]},
    }
    answers = {tuple(nova.hosts(**asked, instance_uuid=f"vm-{number}")) for number in range(20)}
    assert len(answers) > 1
    assert all(answer[3] == "d" and set(answer[:3]) == set("abc") for answer in answers)
    again = [nova.hosts(**asked, instance_uuid="vm-1") for _ in range(2)]
    assert again[0] == again[1]
    for count in (0, 1):
        scheduler_settings(evacuation_shuffle_k=count)
        assert nova.hosts(**asked) == list(offered)


def test_other_intents_are_not_shuffled(nova: NovaClient) -> None:
    weights = {"a": 4.0, "b": 3.0, "c": 2.0}
    for hint in ("rebuild", "resize", "live_migrate", "", "x"):
        hosts = nova.hosts(
            offered=tuple(weights),
            weights=weights,
            pipeline="vmware-hana-bin-packing",
            options=READ_ONLY,
            hints={"_nova_check_type": hint},
        )
        assert hosts == ["a", "b", "c"]


# -- who may call


def test_the_caller_needs_a_token_with_the_role(nova: NovaClient) -> None:
    make_hosts(3)
    assert nova.post(token=SCHEDULER).status_code == 200
    assert nova.post(token=ADMIN).status_code == 200
    assert_error(nova.post(token=None), 401, "unauthorized")
    assert_error(nova.post(token=f"{SCHEDULER}-unknown"), 401)
    assert_error(nova.post(token=VIEWER), 403, "forbidden")
    assert_error(nova.post(token=MEMBER), 403)


# -- status codes


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
def test_only_post_is_allowed(nova: NovaClient, method: str) -> None:
    response = nova.send(method)
    assert response.status_code == 405
    if method != "HEAD":
        assert_error(response, 405, "invalid request method")


def test_other_paths_are_not_found(nova: NovaClient) -> None:
    for path in ("/scheduler/", "/scheduler/nova/external/", "/scheduler/cinder/external"):
        assert_error(nova.send("POST", b"{}", path=path), 404, "not found")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"hosts": {}}',
        b'{"hosts": [1]}',
        b'{"hosts": [{"host": 1}], "weights": {}}',
        b'{"weights": []}',
        b'{"weights": {"a": "1"}}',
        b'{"weights": {"a": true}}',
        b'{"spec": []}',
        b'{"spec": {"nova_object.data": {"num_instances": -1}}}',
        b'{"spec": {"nova_object.data": {"ignore_hosts": "a"}}}',
        b'{"spec": {"nova_object.data": {"scheduler_hints": []}}}',
        b'{"spec": {"nova_object.data": {"project_id": "a\\u0000b"}}}',
        b'{"spec": {"nova_object.data": {"flavor": {"nova_object.data": {"memory_mb": 1.5}}}}}',
        b'{"spec": {"nova_object.data": {"flavor": {"nova_object.data": {"vcpus": 99999999}}}}}',
        b'{"pipeline": 1}',
        b'{"options": {"read_only": 1}}',
        b'{"options": {"max_candidates": "3"}}',
    ],
)
def test_a_body_that_does_not_fit_the_schema_is_refused(nova: NovaClient, body: bytes) -> None:
    assert_error(nova.post(body), 400, "failed to decode request body")


def test_hosts_and_weights_must_match(nova: NovaClient) -> None:
    missing = nova.post(weights={"h1": 0.0, "h2": 0.0})
    assert_error(missing, 400, "missing weight for host", "h3")
    unknown = nova.post(weights={"h1": 0.0, "h2": 0.0, "h3": 0.0, "h9": 0.0})
    assert_error(unknown, 400, "weight assigned to unknown host", "h9")


@pytest.mark.parametrize(
    ("extra_specs", "words"),
    [
        ({}, "failed to determine hypervisor type"),
        (None, "failed to determine hypervisor type"),
        ({TYPE: "xen"}, "failed to determine hypervisor type"),
        ({TYPE: "QEMU", HANA: "maybe"}, "failed to determine flavor type"),
    ],
)
def test_a_pipeline_that_cannot_be_inferred_is_the_callers_error(
    nova: NovaClient, extra_specs: dict[str, str] | None, words: str
) -> None:
    assert_error(nova.post(flavor={"extra_specs": extra_specs}), 400, words)


@recorded_in_rows
@pytest.mark.parametrize(
    ("extra_specs", "pipeline"),
    [
        ({TYPE: "QEMU"}, "kvm-general-purpose-load-balancing"),
        ({TYPE: "ch", HANA: "required"}, "kvm-hana-bin-packing"),
        ({TYPE: "VMware vCenter Server"}, "vmware-general-purpose-load-balancing"),
        ({TYPE: "vmware vcenter server", HANA: "required"}, "vmware-hana-bin-packing"),
    ],
)
def test_an_empty_pipeline_is_inferred_from_the_flavor(
    nova: NovaClient, extra_specs: dict[str, str], pipeline: str
) -> None:
    make_hosts(1)
    nova.hosts(flavor={"extra_specs": extra_specs}, options={"skip_inflight": True})
    assert SchedulingDecision.objects.get().pipeline_name == pipeline


def test_an_unknown_pipeline_is_not_found(nova: NovaClient) -> None:
    assert_error(nova.post(pipeline="no-such-pipeline"), 404, "no-such-pipeline")
    assert_error(nova.post(pipeline="kvm-descheduler"), 404)


def test_a_pipeline_with_a_broken_filter_is_not_usable(nova: NovaClient) -> None:
    save("mine", filters=(StepSpec(name="filter_correct_az"),))
    Pipeline.objects.filter(name="mine").update(filters=[{"name": "filter_external_customer"}])
    assert_error(nova.post(pipeline="mine"), 404, "mine")


def test_a_changed_pipeline_is_used_at_once(nova: NovaClient) -> None:
    make_hosts(3)
    save("mine", ignore_preselection=True)
    assert len(nova.hosts(pipeline="mine", options=READ_ONLY)) == 3
    excluded = StepParam(key="excludedHosts", strings=("h1", "h3"))
    save(
        "mine",
        ignore_preselection=True,
        filters=(StepSpec(name="filter_exclude_hosts", params=(excluded,)),),
    )
    assert nova.hosts(pipeline="mine", options=READ_ONLY) == ["h2"]


def test_candidates_of_other_hypervisors_cannot_be_gathered(nova: NovaClient) -> None:
    response = nova.post(
        pipeline="kvm-general-purpose-load-balancing",
        flavor={"extra_specs": {TYPE: "VMware vCenter Server"}},
    )
    assert_error(response, 400, "failed to process scheduling decision", "cannot be gathered")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        pytest.param({}, None, id="none"),
        pytest.param(READ_ONLY, None, id="read_only + all three skips"),
        pytest.param({"read_only": True}, "skip_history", id="read_only"),
        pytest.param(
            {"read_only": True, "skip_history": True}, "skip_inflight", id="read_only + history"
        ),
        pytest.param(
            {"read_only": True, "skip_history": True, "skip_inflight": True},
            "skip_committed_resource_tracking",
            id="read_only + history + inflight",
        ),
        pytest.param({"max_candidates": -1}, "max_candidates", id="negative candidates"),
        pytest.param({"ignored_reservation_types": ["x"]}, "reservation type", id="unknown type"),
        pytest.param({"ignored_reservation_types": ["FailoverReservation"]}, None, id="their name"),
        pytest.param({"ignored_reservation_types": ["failover"]}, None, id="our name"),
    ],
)
def test_contradicting_options_are_the_callers_error(
    nova: NovaClient, options: dict[str, Any], problem: str | None
) -> None:
    make_hosts(3)
    response = nova.post(options=options)
    if problem is None:
        assert response.status_code == 200
    else:
        assert_error(response, 400, "invalid options", problem)


@pytest.mark.parametrize("size", [{"memory_mb": 0}, {"vcpus": 0}])
def test_a_flavor_without_size_is_refused(nova: NovaClient, size: dict[str, int]) -> None:
    make_hosts(3)
    body = nova.body()
    body["spec"][DATA]["flavor"][DATA].update(size)
    assert_error(nova.post(body), 400, "no memory or no vCPUs")


@recorded_in_rows
def test_a_step_that_cannot_judge_refuses_the_request_and_leaves_a_decision(
    nova: NovaClient,
) -> None:
    make_hosts(3)
    hints = {"_nova_check_type": ["live_migrate"], "source_host": ["h9"]}
    assert_error(nova.post(hints=hints), 400, "filter_live_migratable")
    decision = SchedulingDecision.objects.get()
    assert not decision.is_successful
    assert "filter_live_migratable" in decision.message


def test_a_large_body_is_refused(nova: NovaClient, scheduler_settings: Any) -> None:
    scheduler_settings(max_body_mib=1)
    assert_error(nova.post(b" " * ((1 << 20) + 1)), 413, "too large")


@pytest.mark.parametrize(
    "error", [Busy("all hosts are locked"), OperationalError("deadlock detected")]
)
def test_a_busy_database_is_a_passing_condition(
    nova: NovaClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    if isinstance(error, OperationalError):
        error.__cause__ = type("Cause", (Exception,), {"sqlstate": "40P01"})()

    def busy(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("capacity.api.views.run_scheduling", busy)
    response = nova.post()
    assert_error(response, 503, "temporarily unavailable")
    assert response["Retry-After"] == "1"


def test_a_defect_is_answered_without_its_cause(
    nova: NovaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr("capacity.api.views.run_scheduling", broken)
    response = nova.post()
    assert_error(response, 500, "failed to process scheduling decision")
    assert "secret" not in response.content.decode()


# -- what the request says


def test_the_vms_project_decides_not_the_callers(nova: NovaClient) -> None:
    make_host("h1", allowed_projects=["vm-project"])
    make_host("h2", allowed_projects=["caller-project"])
    body = nova.body(project_id="vm-project", offered=("h1", "h2"))
    body["context"]["project_id"] = "caller-project"
    assert nova.hosts(body) == ["h1"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ignore_hosts": ["h1"]}, {"h2", "h3"}),
        ({"force_hosts": ["h2"]}, {"h2"}),
        ({"force_hosts": []}, set()),
        ({"availability_zone": "az-b"}, {"h3"}),
        ({"requested_destination": {DATA: {"host": "h3", "aggregates": None}}}, {"h3"}),
        (
            {"instance_group": {DATA: {"policy": "affinity", "hosts": ["h1"], "members": []}}},
            {"h1"},
        ),
        (
            {
                "instance_group": {
                    DATA: {
                        "policy": "anti-affinity",
                        "hosts": None,
                        "members": None,
                        "_rules": {"max_server_per_host": "2"},
                    }
                }
            },
            {"h1", "h2", "h3"},
        ),
        ({"image": {DATA: {"properties": {DATA: {"img_hv_type": "vmware"}}}}}, set()),
        ({"image": None}, {"h1", "h2", "h3"}),
        ({"num_instances": 17}, set()),
        ({"num_instances": 0}, {"h1", "h2", "h3"}),
    ],
)
def test_the_parts_of_a_spec_reach_their_filters(
    nova: NovaClient, changes: dict[str, Any], expected: set[str]
) -> None:
    make_hosts(2)
    make_host("h3", zone="az-b")
    assert set(nova.hosts(**changes)) == expected


@recorded_in_rows
@pytest.mark.parametrize(
    ("hints", "recorded"),
    [
        ({"_nova_check_type": "rebuild"}, "rebuild"),
        ({"_nova_check_type": ["evacuate"]}, "evacuate"),
        ({"_nova_check_type": "resize"}, "resize"),
        ({"_nova_check_type": "live_migrate"}, "live_migration"),
        ({"_nova_check_type": ""}, "create"),
        ({"_nova_check_type": "x"}, "create"),
        ({"_nova_check_type": "reserve_for_failover"}, "reserve_for_failover"),
        ({"_nova_check_type": "capacity_probe"}, "capacity_probe"),
        (None, "Unknown"),
        ({}, "Unknown"),
        ({"_nova_check_type": 123}, "Unknown"),
        ({"_nova_check_type": []}, "Unknown"),
        ({"_nova_check_type": [123]}, "Unknown"),
    ],
)
def test_the_intent_is_told_from_the_hints(
    nova: NovaClient, hints: dict[str, Any] | None, recorded: str
) -> None:
    make_hosts(3)
    assert nova.post(hints=hints).status_code == 200
    assert SchedulingDecision.objects.get().intent.lower() == recorded.lower()


@pytest.mark.parametrize("hint", ["reserve_for_failover", "capacity_probe"])
def test_runs_that_bring_no_vm_hold_nothing(nova: NovaClient, hint: str) -> None:
    make_hosts(5)
    offered = tuple(f"h{number}" for number in range(1, 6))
    hosts = nova.hosts(offered=offered, hints={"_nova_check_type": hint})
    assert len(hosts) == 5
    assert in_flight() == []


def test_ignored_reservations_block_nothing(nova: NovaClient) -> None:
    host = make_host("h1", memory_gib=4, vcpus=1)
    make_reservation(host, kind=ReservationKind.FAILOVER, memory_gib=4, vcpus=1)
    assert nova.hosts(options=READ_ONLY) == []
    ignoring = {**READ_ONLY, "ignored_reservation_types": ["FailoverReservation"]}
    assert nova.hosts(options=ignoring) == ["h1"]


def test_empty_hosts_may_be_assumed(nova: NovaClient) -> None:
    make_host("h1", memory_gib=4, vcpus=1)
    Host.objects.update(effective_memory_bytes=4 << 30)
    make_host("h2", memory_gib=2, vcpus=1)
    hosts = nova.hosts(options={**READ_ONLY, "assume_empty_hosts": True})
    assert hosts == ["h1"]


@recorded_in_rows
def test_legacy_pipelines_keep_no_history(nova: NovaClient) -> None:
    make_hosts(3)
    nova.hosts(pipeline="kvm-general-purpose-load-balancing-no-history")
    assert not SchedulingDecision.objects.exists()


def test_requests_are_counted_without_anything_of_their_content(nova: NovaClient) -> None:
    make_hosts(3)
    nova.post()
    nova.post(pipeline="name-that-must-not-be-a-label")
    page = nova.send("GET", path="/metrics").content.decode()
    assert "cortex_scheduler_api_request_duration_seconds_count" in page
    assert 'status="404"' in page
    assert "name-that-must-not-be-a-label" not in page
    for name in (
        "cortex_filter_weigher_pipeline_requests_total",
        "cortex_filter_weigher_pipeline_run_duration_seconds_count",
        "cortex_filter_weigher_pipeline_host_number_in_count",
        "cortex_filter_weigher_pipeline_host_number_out_count",
        "cortex_filter_weigher_pipeline_step_removed_hosts_count",
        "cortex_filter_weigher_pipeline_step_shift_origin_count",
        "cortex_filter_weigher_pipeline_step_impact_count",
    ):
        samples = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
        assert any('pipeline="kvm-general-purpose-load-balancing"' in line for line in samples)


def test_the_answer_is_json_of_hosts_alone(nova: NovaClient) -> None:
    make_hosts(1)
    response = nova.post()
    assert response["Content-Type"] == "application/json"
    assert json.loads(response.content) == {"hosts": ["h1"]}


def test_the_time_of_filters_is_measured_for_a_sample(
    nova: NovaClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capacity.services.step_metrics.TIMED_ONCE_IN", 1)
    make_hosts(3)
    nova.post()
    page = nova.send("GET", path="/metrics").content.decode()
    assert "cortex_filter_weigher_pipeline_step_run_duration_seconds_count" in page
