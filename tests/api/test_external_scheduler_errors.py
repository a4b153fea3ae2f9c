from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from capacity.models import Pipeline, SchedulingDecision
from journal.errors import Busy
from scheduling.pipelines import StepParam, StepSpec
from tests.api.liquid_client import ADMIN, MEMBER, VIEWER
from tests.api.scheduler_client import (
    DATA,
    HANA,
    READ_ONLY,
    SCHEDULER,
    TYPE,
    NovaClient,
    assert_error,
    save,
)
from tests.factories import make_hosts

pytestmark = pytest.mark.django_db
recorded_in_rows = pytest.mark.django_db(transaction=True)  # decisions are written on commit


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


@pytest.mark.parametrize("stated", ["VMware vCenter Server", "", "<or> QEMU <or> ironic"])
def test_candidates_of_other_hypervisors_cannot_be_gathered(nova: NovaClient, stated: str) -> None:
    response = nova.post(
        pipeline="kvm-general-purpose-load-balancing", flavor={"extra_specs": {TYPE: stated}}
    )
    assert_error(response, 400, "failed to process scheduling decision", "cannot be gathered")


@pytest.mark.parametrize("stated", ["QEMU", "ch", "<or> CH <or> QEMU"])
def test_candidates_of_a_kvm_flavor_are_gathered(nova: NovaClient, stated: str) -> None:
    make_hosts(2)
    hosts = nova.hosts(
        pipeline="kvm-general-purpose-load-balancing",
        flavor={"extra_specs": {TYPE: stated}},
        options=READ_ONLY,
    )
    assert (sorted(hosts) == ["h1", "h2"]) is (stated != "ch")  # the hosts run QEMU


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
