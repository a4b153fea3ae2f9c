"""Commitments, claims and a faulty feed together: nothing promised or claimed is ever let go."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from capacity.ledger.rooms import rebuild_host_capacity
from capacity.models import HostCapacity
from hosts.clients.listing import CloudUnreachable
from hosts.domain.notifications import Hint
from hosts.feed.hints import note_hints
from hosts.feed.lists import PassKind
from hosts.models import Instance
from hosts.region.run import ImportOptions
from hosts.services.region_import import import_region
from tests.claim_life import (
    ACTOR,
    COMMITMENTS,
    FLAVORS,
    HOSTS,
    VMS,
    Cloud,
    assert_sound,
    listed_server,
)
from tests.clean_tables import CleanTables
from tests.domain.failover.oracle import five_rules_hold, private_survivors
from tests.failover.zones import assert_drills_save_everybody, plain_slots
from tests.hosts.feed_cloud import LiveCloud
from tests.hosts.feed_wire import FAULTS, WiredCloud, read_wire
from tests.hosts.served_cloud import served_cloud
from tests.killing import run_in_child
from tests.ledger import assert_accepted_commitments_have_their_slots, assert_rooms_add_up
from tests.placement.client import placement_settings
from tests.process_tables import reset_host_table, reset_snapshot

pytestmark = pytest.mark.django_db(transaction=True)

LISTED = "/servers/detail"
vms = st.sampled_from(VMS)
flavors = st.sampled_from(sorted(FLAVORS))
hosts = st.sampled_from(sorted(HOSTS))
uuids = st.sampled_from(sorted(COMMITMENTS))
kinds = st.sampled_from([PassKind.CHANGES, PassKind.SERVERS])
moves = st.one_of(
    st.tuples(st.just("boot"), vms, flavors, hosts),
    st.tuples(st.just("boot_where_told"), vms, flavors),
    st.tuples(st.just("schedule"), vms, flavors),
    st.tuples(st.just("delete"), vms),
    st.tuples(st.just("leave_for"), vms, hosts, flavors),
    st.tuples(st.just("confirm"), vms),
    st.tuples(st.just("revert"), vms),
    st.tuples(st.just("commit"), uuids, st.integers(0, 8)),
    st.tuples(st.just("verify"), st.sampled_from([0, 20])),
    st.tuples(st.just("repair")),
    st.tuples(st.just("fail_over")),
)
looks = st.one_of(
    st.tuples(st.just("nova_lists")),
    st.tuples(st.just("look"), kinds),
    st.tuples(st.just("look"), kinds, st.sampled_from(sorted(FAULTS))),
    st.tuples(st.just("killed"), kinds, st.integers(5, 80)),
    st.tuples(st.just("hint"), vms),
)


@dataclass(slots=True)
class FedCloud(Cloud):
    """A cloud whose claims are here and whose VMs are read over HTTP, as Nova lists them late."""

    wired: WiredCloud = field(default_factory=lambda: WiredCloud(LiveCloud()))

    def nova_lists(self) -> None:
        """Have Nova list what runs now."""
        live = self.wired.cloud
        listed = {server["id"]: server for server in live.servers}
        for vm in VMS:
            held = self.held(vm)
            if not held or vm not in self.flavors:
                if vm in listed:
                    live.delete(vm)
                continue
            server = listed_server(vm, min(held), self.flavors[vm])
            old = listed.get(vm, {})
            if {**server, "updated": old.get("updated")} != old:
                if vm in listed:
                    live.servers.remove(old)
                live.deleted.pop(vm, None)
                server["updated"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                live.servers.append(server)

    def look(self, kind: PassKind, fault: str = "") -> None:
        self.wired.faults = {LISTED: [fault]} if fault else {}
        with suppress(CloudUnreachable), self.busy_is_fine():
            read_wire(kind)
        self.wired.faults = {}

    def killed(self, kind: PassKind, die_at: int) -> None:
        run_in_child(partial(read_wire, kind), die_at)

    def hint(self, vm: str) -> None:
        note_hints([Hint(kind=PassKind.SERVERS, object_id=vm)])

    def load_afresh(self) -> bool:
        """Import what Nova lists as a region file; return whether that changed anything."""
        path = self.folder / "all.json"
        path.write_text(json.dumps({"compute": {"servers": self.wired.cloud.servers}}))
        options = ImportOptions(prune=True, accepts_shrink=True)
        report = import_region(files=[path], actor=ACTOR, request_id="import", options=options)
        return report.has_changes


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[FedCloud]:
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    scheduler = settings.HEADROOM.scheduler.model_copy(update={"committed_resource_tracking": True})
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={"allocation_source": "placement", "scheduler": scheduler}
    )
    fed = FedCloud(tmp_path)
    with served_cloud(fed.wired, tmp_path, monkeypatch):
        yield fed


@pytest.fixture
def clean() -> CleanTables:
    return CleanTables.now()


@hypothesis_settings(
    max_examples=int(os.environ.get("FEED_LIVES", "5")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.booleans(),
    st.lists(st.one_of(moves, moves, looks), min_size=8, max_size=24),
)
def test_after_any_faults_the_ledger_is_that_of_a_fresh_load(
    cloud: FedCloud, clean: CleanTables, failover: bool, history: list[tuple[Any, ...]]
) -> None:
    try:
        _live(cloud, history, failover=failover)
    finally:
        clean.restore()
        reset_host_table()
        reset_snapshot()
        cloud.flavors.clear()
        cloud.wired.cloud.servers.clear()
        cloud.wired.cloud.deleted.clear()


def _live(cloud: FedCloud, history: list[tuple[Any, ...]], *, failover: bool) -> None:
    cloud.build(failover=failover)
    cloud.commit(min(COMMITMENTS), 4)
    read_wire(PassKind.SERVERS)
    for what, *facts in history:
        getattr(cloud, what)(*facts)
        assert_sound()
        assert_accepted_commitments_have_their_slots()
        assert five_rules_hold(plain_slots())

    cloud.nova_lists()
    read_wire(PassKind.CHANGES)
    read_wire(PassKind.SERVERS)
    assert_sound()
    assert dict(Instance.objects.values_list("openstack_id", "host__name")) == {
        vm: min(held) for vm in VMS if (held := cloud.held(vm)) and vm in cloud.flavors
    }
    fed = rooms()
    assert not cloud.load_afresh()
    assert rooms() == fed
    rebuild_host_capacity()
    assert rooms() == fed
    assert_rooms_add_up()
    if failover:
        cloud.fail_over()
        assert_sound()
        assert_failover_is_sound()


def assert_failover_is_sound() -> None:
    """Whoever is covered survives any failure of hosts that the slow search can think of."""
    plain = plain_slots()
    assert five_rules_hold(plain)
    users = {user.vm_uuid: user.host for slot in plain for user in slot.users}
    for vm_uuid, host in users.items():
        have = sum(vm_uuid in {user.vm_uuid for user in slot.users} for slot in plain)
        assert private_survivors(plain, vm_uuid, frozenset({host})) == have
    assert_drills_save_everybody()


def rooms() -> list[tuple[Any, ...]]:
    """Return all that rooms say, by host."""
    columns = [
        f"{kind}_{part}"
        for kind in ("effective", "allocated", "committed", "in_flight", "failover")
        for part in ("memory_bytes", "vcpus")
    ]
    return list(HostCapacity.objects.order_by("host__name").values_list("host__name", *columns))
