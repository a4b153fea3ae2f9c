from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.api.scheduler_client import DATA, NovaClient, recorded_request
from tests.examples import few
from tests.factories import make_hosts

pytestmark = pytest.mark.django_db
EXPECTED = {200, 400, 404}
INTENTS = (
    "rebuild",
    "resize",
    "live_migrate",
    "evacuate",
    "reserve_for_failover",
    "reuse_failover_reservation",
    "reserve_for_committed_resource",
    "capacity_probe",
    "",
)
TEXTS = st.text(max_size=6) | st.sampled_from(
    ["h1", "QEMU", "VMware vCenter Server", "required", "az-a", "a" * 300, "\x00", *INTENTS]
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(node, dict):
        for name, inner in node.items():
            yield from places(inner, (*path, name))
    elif isinstance(node, list):
        for index, inner in enumerate(node):
            yield from places(inner, (*path, index))


def replaced(node: Any, path: tuple[Any, ...], content: Any) -> Any:
    if not path:
        return content
    changed = copy.copy(node)
    changed[path[0]] = replaced(node[path[0]], path[1:], content)
    return changed


def template() -> dict[str, Any]:
    body = NovaClient().template
    spec = body["spec"][DATA]
    spec["flavor"][DATA].update(memory_mb=4096, vcpus=1)
    spec["scheduler_hints"] = {"_nova_check_type": ["resize"], "source_host": "h1"}
    spec["instance_group"] = {
        DATA: {
            "policy": "anti-affinity",
            "hosts": ["h1"],
            "members": ["vm-1"],
            "_rules": {"max_server_per_host": 1},
        }
    }
    spec["requested_destination"][DATA].update(host="", aggregates=["a,b"])
    body["options"] = {
        "read_only": False,
        "max_candidates": 2,
        "ignored_reservation_types": ["failover"],
        "skip_inflight": False,
    }
    return body


TEMPLATE = template()
PLACES = list(places(TEMPLATE))


@pytest.fixture(autouse=True)
def _open(settings: Any) -> None:
    settings.HEADROOM = django_settings.HEADROOM.model_copy(update={"auth": "noauth"})
    make_hosts(3)


def check(body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = NovaClient().send("POST", content, token=None)
    assert response.status_code in EXPECTED, (response.status_code, response.content, content)
    answer = response.json()
    if response.status_code == 200:
        assert set(answer) == {"hosts"}
        assert set(answer["hosts"]) <= {entry["host"] for entry in body["hosts"]}
    else:
        assert set(answer) == {"error", "request_id"}


@few(40, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), JSON), min_size=1, max_size=3))
def test_no_change_of_a_real_request_is_a_server_error(
    changes: list[tuple[tuple[Any, ...], Any]],
) -> None:
    body: Any = TEMPLATE
    for path, content in changes:
        try:
            body = replaced(body, path, content)
        except (KeyError, IndexError, TypeError):
            continue
    check(body)


@few(20, suppress_health_check=list(HealthCheck))
@given(body=JSON | st.binary(max_size=20))
def test_no_body_is_a_server_error(body: Any) -> None:
    check(body)


@few(20, suppress_health_check=list(HealthCheck))
@given(
    intent=st.sampled_from(INTENTS),
    hosts=st.lists(st.sampled_from(["h1", "h2", "h3", "h4", ""]), max_size=4),
    pipeline=st.sampled_from(
        ["", "kvm-hana-bin-packing", "kvm-new-failover-reservation", "vmware-hana-bin-packing"]
    ),
    count=st.integers(0, 4),
)
def test_answers_hold_only_hosts_of_the_request(
    intent: str, hosts: list[str], pipeline: str, count: int
) -> None:
    nova = NovaClient(tuple(hosts))
    check(
        nova.body(
            hints={"_nova_check_type": intent, "source_host": "h1"},
            pipeline=pipeline,
            options={"max_candidates": count},
        )
    )


def test_the_recorded_request_has_the_parts_that_are_fuzzed() -> None:
    assert set(places(recorded_request())) & set(PLACES)
