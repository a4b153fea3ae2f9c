"""Fields that Headroom writes in Hypervisor objects, at a real API server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection

from bridge.doctor import check_owned_fields
from bridge.hypervisors import write_back as writing
from bridge.hypervisors.kubernetes import hypervisors_api, hypervisors_client, object_path
from bridge.hypervisors.watcher import Watcher
from bridge.hypervisors.write_back import WriteBack
from bridge.kube.client import ClusterClient
from bridge.kube.listing import ADDED, DELETED, MODIFIED
from bridge.models import OwnedFieldConflict
from config.sections_hypervisors import OvercommitRule
from hosts.models import Host
from hosts.models import OvercommitRule as RuleRow
from journal.actors import Actor
from journal.history import read_moment
from journal.leases import check_leases
from placement.tasks import reconcile_hosts
from tests.bridge.conftest import use
from tests.bridge.hypervisor_objects import Json, hypervisor_object, with_spec
from tests.bridge.hypervisor_writer import Objects, awaited
from tests.bridge.test_hypervisor_watch import followed
from tests.kube.server import Cluster
from tests.placement.client import PlacementClient, placement_settings, uuid
from tests.placement.test_host_groups import put_traits

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

GPU = OvercommitRule(overcommit={"cpu": Decimal(4)}, has_trait="GPU")
BIG = OvercommitRule(overcommit={"memory": Decimal("1.5")}, hasnt_trait="SMALL")


@pytest.fixture
def objects(api_server: Cluster, takes_objects: Any) -> Iterator[Objects]:
    use(
        takes_objects,
        kubeconfig=api_server.kubeconfig,
        write_back=("overcommit",),
        overcommit_rules=(GPU, BIG),
        write_back_interval_seconds=0.2,
        conflict_pause_seconds=3600.0,
        longest_pause_seconds=1.0,
    )
    objects = Objects(api_server)
    objects.define()
    yield objects
    objects.close()


class Stepped:
    """One that writes when it is told to, of what the objects are then."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self._watcher = Watcher(hypervisors_api, actor=Actor(name="test"), until=None)  # type: ignore[arg-type]  # never asked
        self._back = WriteBack(self._client, lambda: self._watcher._stated)

    def _client(self) -> ClusterClient:
        client = hypervisors_client()
        request = client.request

        def counted(method: str, path: str, *args: Any, **more: Any) -> Any:
            self.requests.append(path)
            return request(method, path, *args, **more)

        client.request = counted  # type: ignore[method-assign]  # counts
        return client

    def step(self, *, looks: bool = True) -> int:
        if looks:
            self._watcher.list_once()
        return self._back.step()


def managers(body: Json) -> set[str]:
    return {one["manager"] for one in body["metadata"]["managedFields"]}


def put_as(objects: Objects, manager: str, body: Json, *, sub: str = "") -> None:
    """Apply an object as another controller does."""
    client = hypervisors_client()
    path = object_path(body["metadata"]["name"], sub)
    client.apply(path, body, manager=manager)
    client.close()


def only(body: Json, section: str, **fields: Any) -> Json:
    kept = {key: body[key] for key in ("apiVersion", "kind")}
    return {**kept, "metadata": {"name": body["metadata"]["name"]}, section: fields}


def test_overcommit_follows_the_traits_and_then_rests(objects: Objects) -> None:
    objects.put(hypervisor_object("gpu", traits=["GPU"]))
    objects.put(hypervisor_object("small", traits=["SMALL"]))
    stepped = Stepped()
    assert stepped.step() == 1
    assert stepped.step() == 0
    assert objects.get("gpu")["spec"]["overcommit"] == {"cpu": 4, "memory": 1.5}
    assert "headroom-overcommit" in managers(objects.get("gpu"))
    assert "overcommit" not in objects.get("small")["spec"]
    objects.say("gpu", traits=["SMALL"])
    assert stepped.step() == 1
    assert not objects.get("gpu")["spec"].get("overcommit")
    assert Host.objects.get(name="gpu").vcpus_ratio == 4
    assert stepped.step() == 0
    assert Host.objects.get(name="gpu").vcpus_ratio == 1
    assert len(stepped.requests) == 2


def test_what_was_just_written_is_not_written_again_before_it_is_heard(objects: Objects) -> None:
    objects.put(hypervisor_object("gpu", traits=["GPU"]))
    stepped = Stepped()
    assert stepped.step() == 1
    assert stepped.step(looks=False) == 0


def test_the_field_of_another_is_told_and_left_alone(objects: Objects) -> None:
    body = hypervisor_object("gpu", traits=["GPU"])
    put_as(objects, "operator", only(body, "spec", overcommit={"cpu": 2, "disk": 3}))
    objects.put(body)
    stepped = Stepped()
    assert stepped.step() == 1
    assert objects.get("gpu")["spec"]["overcommit"] == {"cpu": 2, "disk": 3}
    (conflict,) = OwnedFieldConflict.objects.all()
    assert (conflict.host_name, conflict.field) == ("gpu", "overcommit")
    assert 'conflict with "operator"' in conflict.problem
    (finding,) = check_owned_fields()
    assert finding.severity == "error"
    assert "operator" in finding.found
    assert stepped.step() == 0  # it rests
    put_as(objects, "operator", only(body, "spec", overcommit={}))
    assert Stepped().step() == 1
    assert objects.get("gpu")["spec"]["overcommit"] == {"cpu": 4, "memory": 1.5}
    assert not OwnedFieldConflict.objects.exists()
    assert [one.severity for one in check_owned_fields()] == ["ok"]


def test_keys_that_others_add_are_told(objects: Objects) -> None:
    objects.put(with_spec(hypervisor_object("gpu", traits=["GPU"]), overcommit={"disk": 3}))
    assert Stepped().step() == 1
    assert objects.get("gpu")["spec"]["overcommit"] == {"cpu": 4, "disk": 3, "memory": 1.5}
    assert "disk" in OwnedFieldConflict.objects.get().problem


def test_a_field_is_taken_where_a_setting_says_so(objects: Objects, takes_objects: Any) -> None:
    use(takes_objects, conflicts="force")
    body = hypervisor_object("gpu", traits=["GPU"])
    put_as(objects, "operator", only(body, "spec", overcommit={"cpu": 2, "disk": 3}))
    objects.put(body)
    stepped = Stepped()
    assert stepped.step() == 1
    assert objects.get("gpu")["spec"]["overcommit"] == {"cpu": 4, "memory": 1.5}
    assert stepped.step() == 0
    assert not OwnedFieldConflict.objects.exists()


def test_effective_capacity_of_ours_reaches_object_and_ledger(
    objects: Objects, takes_objects: Any
) -> None:
    use(takes_objects, write_back=("overcommit", "effective_capacity"))
    objects.put(hypervisor_object("gpu", traits=["GPU"], effectiveCapacity=None))
    stepped = Stepped()
    while stepped.step():
        pass
    assert objects.get("gpu")["status"]["effectiveCapacity"] == {
        "cpu": "256",
        "memory": str(768 << 30),
    }
    host = Host.objects.get(name="gpu")
    assert (host.effective_vcpus, host.effective_memory_bytes) == (256, 768 << 30)
    objects.say("gpu", effectiveCapacity={"cpu": "256", "memory": "768Gi"})
    assert stepped.step() == 0  # the same in other words


def test_rules_that_operators_edit_are_written_where_no_setting_has_any(
    objects: Objects, takes_objects: Any
) -> None:
    use(takes_objects, overcommit_rules=())
    RuleRow.objects.create(position=1, has_trait="GPU", cpu_ratio=Decimal(3))
    objects.put(hypervisor_object("gpu", traits=["GPU"]))
    objects.put(hypervisor_object("plain", traits=[]))
    stepped = Stepped()
    while stepped.step():
        pass
    assert objects.get("gpu")["spec"]["overcommit"] == {"cpu": 3}
    assert not objects.get("plain")["spec"].get("overcommit")
    host = Host.objects.get(name="gpu")
    assert host.vcpus_ratio == 3
    assert host.ruled_overcommit is None
    RuleRow.objects.all().delete()
    while stepped.step():
        pass
    assert not objects.get("gpu")["spec"].get("overcommit")


def test_cells_promise_as_their_host_does(objects: Objects, takes_objects: Any) -> None:
    """Only where nobody else owns the list, which is one field of one manager."""
    use(takes_objects, write_back=("overcommit", "cells"))
    cells = [{"cellID": one, "capacity": {"cpu": "32", "memory": "1Gi"}} for one in (0, 1)]
    objects.put(hypervisor_object("gpu", traits=["GPU"]))
    put_as(
        objects,
        "node-agent",
        only({**hypervisor_object("gpu")}, "status", cells=cells),
        sub="status",
    )
    stepped = Stepped()
    while stepped.step():
        pass
    assert objects.get("gpu")["status"]["cells"] == cells
    assert "node-agent" in OwnedFieldConflict.objects.get(field="cells").problem
    use(takes_objects, conflicts="force")
    stepped = Stepped()
    while stepped.step():
        pass
    may = {"cpu": "128", "memory": str(3 << 29)}
    promised = [{**cell, "effectiveCapacity": may} for cell in cells]
    assert objects.get("gpu")["status"]["cells"] == promised
    assert not OwnedFieldConflict.objects.exists()
    changed = [{**cell, "allocation": {"cpu": "1"}} for cell in promised]
    objects.say("gpu", cells=changed)
    assert stepped.step() == 0  # what is of others stays as they say it
    assert objects.get("gpu")["status"]["cells"] == changed


def test_a_node_agent_that_writes_effective_capacity_keeps_it(
    objects: Objects, takes_objects: Any
) -> None:
    use(takes_objects, write_back=("effective_capacity",), overcommit_rules=())
    body = hypervisor_object("node1", effectiveCapacity=None)
    objects.put(body)
    told = only(body, "status", effectiveCapacity={"cpu": "1", "memory": "1"})
    put_as(objects, "node-agent", told, sub="status")
    assert Stepped().step() == 1
    assert objects.get("node1")["status"]["effectiveCapacity"] == {"cpu": "1", "memory": "1"}
    assert "node-agent" in OwnedFieldConflict.objects.get(field="effective_capacity").problem


def test_an_object_made_anew_is_not_written_for_the_old_one(objects: Objects) -> None:
    objects.put(hypervisor_object("gpu", traits=["GPU"]))
    stepped = Stepped()
    stepped._watcher.list_once()
    objects.delete("gpu")
    assert stepped.step(looks=False) == 1
    assert not objects.names()
    objects.put(hypervisor_object("gpu", traits=["SMALL"]))
    assert stepped.step(looks=False) == 1
    assert "overcommit" not in objects.get("gpu")["spec"]
    assert not OwnedFieldConflict.objects.exists()


def test_it_follows_beside_the_watch_and_forgets_when_it_is_switched_off(
    objects: Objects, takes_objects: Any
) -> None:
    OwnedFieldConflict.objects.create(host_name="gone", field="overcommit", problem="old")
    objects.put(hypervisor_object("gpu"))
    with followed():
        awaited(lambda: Host.objects.filter(name="gpu", memory_ratio="1.5").exists())
        objects.say("gpu", traits=["GPU"])
        awaited(lambda: Host.objects.filter(name="gpu", vcpus_ratio=4).exists())
        awaited(lambda: not OwnedFieldConflict.objects.exists())
    version = objects.get("gpu")["metadata"]["resourceVersion"]
    assert version == objects.get("gpu")["metadata"]["resourceVersion"]
    OwnedFieldConflict.objects.create(host_name="gone", field="overcommit", problem="old")
    use(takes_objects, write_back=())
    objects.put(hypervisor_object("other"))
    with followed():
        awaited(lambda: Host.objects.filter(name="other").exists())
        awaited(lambda: not OwnedFieldConflict.objects.exists())
    assert "overcommit" not in objects.get("other")["spec"]


def test_a_database_and_a_cluster_that_fail_for_a_moment_lose_nothing(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []
    check, path_of = check_leases, object_path

    def cut_off() -> None:
        if "database" not in failed:
            failed.append("database")
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        check()

    def lost(name: str = "", sub: str = "") -> str:
        if "cluster" not in failed:
            failed.append("cluster")
            return "/nowhere"
        return path_of(name, sub)

    monkeypatch.setattr(writing, "check_leases", cut_off)
    monkeypatch.setattr(writing, "object_path", lost)
    objects.put(hypervisor_object("gpu", traits=["GPU"]))
    with followed():
        awaited(lambda: Host.objects.filter(name="gpu", vcpus_ratio=4).exists())
    assert failed == ["database", "cluster"]


def test_who_may_not_write_is_told_so(objects: Objects, takes_objects: Any) -> None:
    if not hasattr(objects.cluster, "programs"):
        pytest.skip("users are those of our own API server")
    objects.put(hypervisor_object("gpu", traits=["GPU"]))
    stepped = Stepped()
    stepped._watcher.list_once()
    use(takes_objects, context="human")
    assert stepped.step(looks=False) == 1
    assert "403" in OwnedFieldConflict.objects.get().problem
    (finding,) = check_owned_fields()
    assert "not written, such as overcommit of gpu: 403" in finding.found


@pytest.fixture
def placement(takes_objects: Any) -> PlacementClient:
    placement_settings(takes_objects, enforce_new_defaults=False)
    changed = {"allocation_source": "placement"}
    takes_objects.HEADROOM = takes_objects.HEADROOM.model_copy(update=changed)
    return PlacementClient(X_Roles="admin,service")


def test_allocations_of_a_local_placement_reach_the_object(
    objects: Objects, placement: PlacementClient, takes_objects: Any
) -> None:
    use(takes_objects, write_back=("allocation",), overcommit_rules=())
    body = hypervisor_object("node1", hypervisorId=uuid(), allocation=None)
    objects.put(body)
    stepped = Stepped()
    assert stepped.step() == 1
    assert objects.get("node1")["status"]["allocation"] == {"cpu": "0", "memory": "0"}
    reconcile_hosts()
    provider = body["status"]["hypervisorId"]
    placement.set_inventory(provider, VCPU={"total": 64}, MEMORY_MB={"total": 512 << 10})
    consumer = uuid()
    assert placement.allocate(consumer, {provider: {"VCPU": 2, "MEMORY_MB": 2048}}).status == 204
    assert stepped.step(looks=False) == 1
    assert objects.get("node1")["status"]["allocation"] == {"cpu": "2", "memory": str(2 << 30)}
    assert stepped.step() == 0
    assert placement.delete(f"/allocations/{consumer}").status == 204
    assert stepped.step() == 1
    assert objects.get("node1")["status"]["allocation"] == {"cpu": "0", "memory": "0"}


def test_what_is_held_of_each_cell_reaches_the_object(
    objects: Objects, placement: PlacementClient, takes_objects: Any
) -> None:
    """As long as all that is held of the host is held of its cells."""
    use(takes_objects, write_back=("allocation", "cells"), conflicts="force")
    cells = [{"cellID": one, "capacity": {"cpu": "32", "memory": "256Gi"}} for one in (0, 1)]
    body = hypervisor_object("gpu", hypervisorId=uuid(), cells=cells)
    objects.put(body)
    stepped = Stepped()
    stepped.step()
    reconcile_hosts()
    root = body["status"]["hypervisorId"]
    parts = [
        placement.make_provider(
            f"gpu_NUMA_{one}", root, VCPU={"total": 32}, MEMORY_MB={"total": 256 << 10}
        )
        for one in (0, 1)
    ]
    for part in parts:
        assert put_traits(placement, part, "HW_NUMA_ROOT") == 200
    for part in (parts[1], *parts):
        given = {part: {"VCPU": 2, "MEMORY_MB": 2048}}
        assert placement.allocate(uuid(), given).status == 204

    def held() -> list[Json | None]:
        while stepped.step():
            pass
        return [one.get("allocation") for one in objects.get("gpu")["status"]["cells"]]

    one, two = ({"cpu": str(2 * n), "memory": str(n << 31)} for n in (1, 2))
    assert held() == [one, two]
    placement.set_inventory(root, VCPU={"total": 64}, MEMORY_MB={"total": 512 << 10})
    assert placement.allocate(uuid(), {root: {"VCPU": 1}}).status == 204
    assert placement.allocate(uuid(), {parts[0]: {"VCPU": 1}}).status == 204
    assert held() == [one, two]  # nobody knows in which cell the first one is


def test_what_clients_of_placement_ask_of_a_host_reaches_the_groups(
    objects: Objects, placement: PlacementClient, takes_objects: Any
) -> None:
    use(takes_objects, write_back=("groups",), overcommit_rules=())
    body = hypervisor_object("node1", hypervisorId=uuid(), traits=["HW_CPU_X86_AVX"])
    aggregate = {"aggregate": {"name": "rack", "uuid": uuid()}}
    objects.put(with_spec(body, groups=[{"trait": {"name": "CUSTOM_OLD"}}, aggregate]))
    stepped = Stepped()
    assert stepped.step() == 0  # nobody asked
    reconcile_hosts()
    provider = body["status"]["hypervisorId"]
    assert put_traits(placement, provider, "HW_CPU_X86_AVX", "HW_CPU_X86_SSE") == 200
    assert stepped.step(looks=False) == 1
    wanted = [aggregate, *({"trait": {"name": f"HW_CPU_X86_{name}"}} for name in ("AVX", "SSE"))]
    assert OwnedFieldConflict.objects.count() == 1  # another wrote the list
    use(takes_objects, conflicts="force")
    stepped = Stepped()
    stepped._watcher.list_once()
    put_as(objects, "operator", only(body, "spec", version="2"))
    assert stepped.step(looks=False) == 1  # made of an older version, so refused
    assert objects.get("node1")["spec"]["groups"] != wanted
    assert stepped.step() == 1
    assert objects.get("node1")["spec"]["groups"] == wanted
    assert objects.get("node1")["spec"]["version"] == "2"
    assert stepped.step() == 0
    assert put_traits(placement, provider, "HW_CPU_X86_AVX") == 200
    use(takes_objects, conflicts="report")
    assert Stepped().step() == 1
    assert objects.get("node1")["spec"]["groups"] == wanted[:2]


def test_what_came_and_went_or_is_not_understood_states_nothing(takes_objects: Any) -> None:
    """Nothing is written back to it."""
    use(takes_objects, write_back=("overcommit",), overcommit_rules=(GPU,))
    watcher = Watcher(hypervisors_api, actor=Actor(name="test"), until=threading.Event())
    watcher._moment = read_moment()  # as a list does, which comes first

    def event(kind: str, name: str, **status: Any) -> Json:
        return {"type": kind, "object": hypervisor_object(name, **status)}

    def stated() -> set[str]:
        return set(watcher._stated or ())

    watcher._take([event(ADDED, "stays"), event(ADDED, "goes"), event(DELETED, "goes")])
    assert stated() == {"stays"}
    garbage = event(MODIFIED, "stays", capacity={"cpu": "lots"})
    watcher._take([event(MODIFIED, "stays"), garbage])
    assert stated() == set()
    watcher._take([event(MODIFIED, "stays")])
    watcher._take([garbage])
    assert stated() == set()
    watcher._take([event(MODIFIED, "stays")])
    watcher._take([event(DELETED, "stays"), event(ADDED, "stays")])
    assert stated() == {"stays"}
