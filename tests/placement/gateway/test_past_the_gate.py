"""What writes to tables of Placement past its API while a cloud moves is refused, or harmless."""

from __future__ import annotations

import threading
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone

from config.sections_gateway import GatewaySettings
from journal.actors import Actor
from journal.errors import Busy
from journal.models import AuditEntry
from placement.cutover import state
from placement.gateway.modes import STATEFUL
from placement.models import Consumer, Cutover, Inventory, Origin, Phase, ResourceProvider
from placement.selectors.contents import read_contents
from placement.services.transfer import import_contents
from placement.tasks import reconcile_hosts
from tests import factories
from tests.concurrency.test_change_races import on_own_connection
from tests.placement.client import placement_settings
from tests.placement.rows import allocate, make_provider

pytestmark = pytest.mark.django_db(transaction=True)

NOWHERE = "http://127.0.0.1:9/placement"
MOVING = [phase for phase in Phase if phase is not Phase.OFF]
PATIENCE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def _hands_on(settings: Any) -> None:
    use_gateway(settings, upstream_url=NOWHERE, token="admin")


def use_gateway(settings: Any, **fields: Any) -> None:
    placement_settings(settings, host_providers=True)
    gateway = GatewaySettings(**fields)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"gateway": gateway})


@pytest.fixture
def export(tmp_path: Path) -> str:
    """A file with a host and what a consumer holds of it, of which our tables have nothing."""
    host = make_provider("h1", inventories={"VCPU": 8})
    allocate(uuid4(), {host: {"VCPU": 2}})
    file = tmp_path / "export"
    call_command("placement_export", "--output", str(file), stdout=StringIO())
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE placement_provider, placement_consumer CASCADE")
    return str(file)


def begin(phase: Phase) -> None:
    Cutover.objects.update_or_create(
        id=1, defaults={"phase": phase, "closes_at": timezone.now() + timedelta(hours=1)}
    )


def run(command: str, *arguments: str) -> None:
    call_command(command, *arguments, stdout=StringIO())


@pytest.mark.parametrize("phase", MOVING)
@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_nothing_is_imported_while_a_cloud_moves(
    export: str, phase: Phase, arguments: tuple[str, ...]
) -> None:
    begin(phase)
    with pytest.raises(CommandError, match=f"phase {phase}.*nothing was imported"):
        run("placement_import", "--from-file", export, *arguments)
    assert not read_contents(with_copies=True).providers

    begin(Phase.OFF)
    run("placement_import", "--from-file", export)
    assert len(read_contents().providers) == 1


def test_a_cloud_that_has_moved_is_imported_into(export: str, settings: Any) -> None:
    begin(Phase.SWITCHED)
    use_gateway(settings, upstream_url=NOWHERE, modes=dict.fromkeys(STATEFUL, "local"))
    run("placement_import", "--from-file", export)
    assert len(read_contents().providers) == 1


def test_copies_that_were_left_are_imported_over(tmp_path: Path) -> None:
    host = make_provider("h1", inventories={"VCPU": 8})
    make_provider("h1-cell", parent=host, inventories={"PCPU": 4})
    allocate(uuid4(), {host: {"VCPU": 2}})
    file = tmp_path / "export"
    run("placement_export", "--output", str(file))
    there = read_contents()
    make_provider("gone", inventories={"VCPU": 8})  # over there, since it was copied
    ResourceProvider.objects.update(origin=Origin.UPSTREAM)
    Inventory.objects.filter(provider=host).update(total=16)
    assert not read_contents().providers

    run("placement_import", "--from-file", str(file), "--dry-run")
    assert not read_contents().providers
    for _ in range(2):
        run("placement_import", "--from-file", str(file))
        found = read_contents()
        assert found.providers.keys() == there.providers.keys()
        assert found.providers[str(host.uuid)].inventories["VCPU"].total == 8
        assert found.consumers.keys() == there.consumers.keys()
    assert ResourceProvider.objects.get(name="gone").origin == Origin.UPSTREAM
    entry = AuditEntry.objects.get(action="placement_imported")
    assert (entry.after or {})["copies"] == 2


def test_copies_alone_become_ours(export: str) -> None:
    run("placement_import", "--from-file", export)
    imports = AuditEntry.objects.filter(action="placement_imported")
    assert imports.count() == 1
    ResourceProvider.objects.update(origin=Origin.UPSTREAM)
    run("placement_import", "--from-file", export)
    assert len(read_contents().providers) == 1
    assert imports.count() == 2


def test_copying_begins_before_an_import_or_after_it(export: str, settings: Any) -> None:
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"lock_timeout_seconds": 0.05})
    is_held, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        """Hold what an import holds from before its first write on."""
        with transaction.atomic():
            state.refuse_while_moving("a test")
            is_held.set()
            assert goes_on.wait(PATIENCE_SECONDS)

    importing = threading.Thread(target=lambda: on_own_connection(hold))
    importing.start()
    try:
        assert is_held.wait(PATIENCE_SECONDS)
        with pytest.raises(Busy):
            state.begin()
    finally:
        goes_on.set()
        importing.join(PATIENCE_SECONDS)
    run("placement_import", "--from-file", export)
    with pytest.raises(state.WrongPhaseError, match="h1 is a provider of our own"):
        state.begin()  # though nobody looked since
    assert state.current_phase() is Phase.OFF

    contents = read_contents()
    ResourceProvider.objects.update(origin="upstream")
    assert state.begin()
    with pytest.raises(state.WrongPhaseError):
        import_contents(contents, actor=Actor(name="test"), request_id="req-1")


@pytest.mark.parametrize("phase", MOVING)
def test_orphans_are_not_given_back_while_a_cloud_moves_and_all_else_is_repaired(
    phase: Phase,
) -> None:
    provider = make_provider("h1", inventories={"VCPU": 8})
    host = factories.make_host("h1", openstack_id=str(provider.uuid))
    vm = allocate(uuid4(), {provider: {"VCPU": 1}})
    factories.make_vm("here", host, openstack_id=str(vm.uuid))
    allocate(uuid4(), {provider: {"VCPU": 2}})
    Consumer.objects.update(updated_at=timezone.now() - timedelta(days=2))
    Inventory.objects.update(used=5)
    begin(phase)
    with pytest.raises(CommandError, match=f"phase {phase}.*giving orphaned allocations back"):
        run("placement_audit", "--fix")
    assert (Consumer.objects.count(), Inventory.objects.get().used) == (2, 3)

    begin(Phase.OFF)
    run("placement_audit", "--fix")
    assert (Consumer.objects.get(), Inventory.objects.get().used) == (vm, 1)


@pytest.mark.parametrize("phase", MOVING)
def test_hosts_get_no_providers_while_a_cloud_moves(phase: Phase) -> None:
    factories.make_host(name="h1")
    begin(phase)
    assert reconcile_hosts()["moving"] == 1
    assert not ResourceProvider.objects.exists()
    begin(Phase.OFF)
    assert reconcile_hosts()["created"] == 1


@pytest.mark.parametrize("phase", MOVING)
def test_names_are_copied_by_the_move_alone(phase: Phase) -> None:
    begin(phase)
    with pytest.raises(CommandError, match=f"phase {phase}.*copying names"):
        run("placement_sync_names")
