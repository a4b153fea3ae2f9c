from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from hosts.models import Region
from journal.models import AuditEntry
from placement.doctor import check_tables
from placement.models import (
    Aggregate,
    Allocation,
    AllocationEvent,
    Change,
    Consumer,
    Inventory,
    ProjectUsage,
    ResourceProvider,
)
from placement.services.audit import AuditKind, find_problems
from tests import factories
from tests.placement.rows import allocate, make_provider

pytestmark = pytest.mark.django_db

VM = UUID("00000000-0000-4000-8000-00000000aaaa")


def kinds() -> list[AuditKind]:
    return [finding.kind for finding in find_problems()]


def run_audit(*arguments: str) -> dict[str, object]:
    """Run the command and return its JSON, whether or not it fails."""
    out = StringIO()
    with suppress(CommandError):
        call_command("placement_audit", "--json", *arguments, stdout=out)
    return dict(json.loads(out.getvalue()))


def age(consumer: Consumer, *, hours: int) -> None:
    Consumer.objects.filter(pk=consumer.pk).update(
        updated_at=timezone.now() - timedelta(hours=hours)
    )


def test_sound_tables_have_no_findings() -> None:
    host = make_provider("h1", inventories={"VCPU": 8})
    make_provider("h1-numa", parent=host, inventories={"PCPU": 8})
    allocate(uuid4(), {host: {"VCPU": 2}})
    Aggregate.objects.create(uuid=uuid4())

    out = StringIO()
    call_command("placement_audit", stdout=out)

    assert kinds() == []
    assert "nothing is wrong" in out.getvalue()


def test_drifted_use_is_reported_with_numbers_and_repaired() -> None:
    host = make_provider("h1", inventories={"VCPU": 8, "MEMORY_MB": 64})
    allocate(uuid4(), {host: {"VCPU": 2}})
    Inventory.objects.filter(provider=host, resource_class__name="VCPU").update(used=5)
    Inventory.objects.filter(provider=host, resource_class__name="MEMORY_MB").update(used=7)

    found = run_audit()
    assert found["left"] == 2
    assert Inventory.objects.get(provider=host, resource_class__name="VCPU").used == 5
    fixed = run_audit("--fix")

    details = [finding["detail"] for finding in fixed["findings"]]  # type: ignore[attr-defined]
    assert details == [
        "VCPU says 5 used, allocations add up to 2",
        "MEMORY_MB says 7 used, allocations add up to 0",
    ]
    assert fixed["left"] == 0
    used = Inventory.objects.order_by("resource_class_id").values_list("used", flat=True)
    assert list(used) == [2, 0]
    assert Change.objects.filter(root_id=host.pk).exists()
    assert AuditEntry.objects.filter(action="placement_drift_repaired").count() == 2


def test_wrong_roots_are_repaired_and_both_trees_logged() -> None:
    host, other = make_provider("h1"), make_provider("h2")
    child = make_provider("child", parent=host)
    ResourceProvider.objects.filter(pk=child.pk).update(root=other)

    assert kinds() == [AuditKind.WRONG_ROOT]
    assert run_audit("--fix")["left"] == 0

    child.refresh_from_db()
    assert child.root_id == host.pk
    assert {host.pk, other.pk} <= {row.root_id for row in Change.objects.all()}


def test_a_loop_is_reported_and_left_to_people() -> None:
    first = make_provider("first")
    second = make_provider("second", parent=first)
    ResourceProvider.objects.filter(pk=first.pk).update(parent=second)

    assert kinds() == [AuditKind.LOOP, AuditKind.LOOP]
    assert run_audit("--fix")["left"] == 2


def test_consumers_without_allocations_are_deleted() -> None:
    host = make_provider("h1", inventories={"VCPU": 8})
    consumer = allocate(uuid4(), {host: {"VCPU": 2}})
    Allocation.objects.all().delete()
    ProjectUsage.objects.all().delete()
    Inventory.objects.update(used=0)

    assert kinds() == [AuditKind.EMPTY_CONSUMER]
    assert run_audit("--fix")["left"] == 0
    assert not Consumer.objects.filter(pk=consumer.pk).exists()


def test_only_old_aggregates_without_members_are_deleted() -> None:
    member, old, fresh = uuid4(), uuid4(), uuid4()
    make_provider("h1", aggregates=(member,))
    for uuid in (old, fresh):
        Aggregate.objects.create(uuid=uuid)
    long_ago = timezone.now() - timedelta(days=31)
    Aggregate.objects.filter(uuid__in=[member, old]).update(created_at=long_ago)

    assert [finding.subject for finding in find_problems()] == [str(old)]
    run_audit("--fix")

    assert set(Aggregate.objects.values_list("uuid", flat=True)) == {member, fresh}


class TestOrphans:
    @pytest.fixture
    def host(self) -> ResourceProvider:
        """A host of the region with one VM that holds what it should."""
        provider = make_provider("h1", inventories={"VCPU": 64})
        region_host = factories.make_host("h1", openstack_id=str(provider.uuid))
        factories.make_vm("here", region_host, openstack_id=str(VM))
        allocate(VM, {provider: {"VCPU": 1}})
        return provider

    def test_old_allocations_of_a_vm_that_is_gone_are_given_back(
        self, host: ResourceProvider
    ) -> None:
        gone = allocate(uuid4(), {host: {"VCPU": 4}})
        age(gone, hours=25)

        assert [(row.kind, row.subject) for row in find_problems()] == [
            (AuditKind.ORPHAN, str(gone.uuid))
        ]
        assert run_audit("--fix")["left"] == 0

        assert Inventory.objects.get(provider=host).used == 1
        assert set(Consumer.objects.values_list("uuid", flat=True)) == {VM}
        assert AuditEntry.objects.filter(object_id=str(gone.uuid)).count() == 1

    @pytest.mark.parametrize(
        ("hours", "type_name", "provider_name"),
        [
            pytest.param(1, "", "h1", id="young"),
            pytest.param(99, "MIGRATION", "h1", id="a migration"),
            pytest.param(99, "COMMITMENT", "h1", id="held by a commitment"),
            pytest.param(99, "", "bare-metal", id="not on a host of the region"),
        ],
    )
    def test_others_are_left_alone(
        self, host: ResourceProvider, hours: int, type_name: str, provider_name: str
    ) -> None:
        provider = (
            host
            if provider_name == host.name
            else make_provider(provider_name, inventories={"VCPU": 8})
        )
        consumer = allocate(uuid4(), {provider: {"VCPU": 4}}, type_name=type_name)
        age(consumer, hours=hours)

        assert kinds() == []

    def test_a_vm_on_a_host_without_allocations_is_reported(self, host: ResourceProvider) -> None:
        bare = make_provider("h2", inventories={"VCPU": 8})
        vm = factories.make_vm(
            "bare",
            factories.make_host("h2", openstack_id=str(bare.uuid)),
            openstack_id=str(uuid4()),
        )

        findings = find_problems()

        assert [(row.kind, row.subject) for row in findings] == [
            (AuditKind.MISSING, vm.openstack_id)
        ]
        assert host.name not in findings[0].detail

    def test_hosts_and_providers_are_joined_by_uuid_whatever_their_names(
        self, host: ResourceProvider
    ) -> None:
        """The name of a host may be that of a provider that is none of ours."""
        other = make_provider("h2.example.org", inventories={"VCPU": 8})
        foreign = make_provider("h2", inventories={"VCPU": 8})
        region_host = factories.make_host(
            "h2", openstack_id="17", provider_uuid=other.uuid.hex.upper()
        )
        age(allocate(uuid4(), {foreign: {"VCPU": 4}}), hours=99)
        orphan = allocate(uuid4(), {other: {"VCPU": 4}})
        age(orphan, hours=99)
        shouted = uuid4()
        factories.make_vm("shouted", region_host, openstack_id=shouted.hex.upper())
        missing = factories.make_vm("bare", region_host, openstack_id=str(uuid4()))
        age(allocate(shouted, {other: {"VCPU": 1}}), hours=99)

        assert {(row.kind, row.subject) for row in find_problems()} == {
            (AuditKind.ORPHAN, str(orphan.uuid)),
            (AuditKind.MISSING, missing.openstack_id),
        }

    def test_without_any_vm_nothing_is_called_orphaned(self) -> None:
        provider = make_provider("h1", inventories={"VCPU": 64})
        factories.make_host("h1", openstack_id=str(provider.uuid))
        age(allocate(uuid4(), {provider: {"VCPU": 4}}), hours=99)

        assert kinds() == []

    def test_a_mass_deletion_is_refused_unless_forced(self, host: ResourceProvider) -> None:
        for _ in range(5):
            age(allocate(uuid4(), {host: {"VCPU": 1}}), hours=99)

        with pytest.raises(CommandError, match="5 of 6 consumers would lose"):
            call_command("placement_audit", "--fix", stdout=StringIO())
        assert Consumer.objects.count() == 6

        assert run_audit("--fix", "--force")["left"] == 0
        assert Consumer.objects.count() == 1


def test_the_number_of_queries_does_not_grow_with_rows(
    django_assert_max_num_queries: object,
) -> None:
    for number in range(5):
        host = make_provider(f"h{number}", inventories={"VCPU": 8})
        allocate(uuid4(), {host: {"VCPU": 2}})
    connection.force_debug_cursor = True
    before = len(connection.queries_log)

    find_problems()

    connection.force_debug_cursor = False
    assert len(connection.queries_log) - before == len(AuditKind) + 1, "and the time of the VM list"


@pytest.mark.parametrize(
    ("extra_specs", "found"),
    [
        pytest.param({"trait:CUSTOM_GONE": "required"}, ["CUSTOM_GONE"], id="unknown"),
        pytest.param({"trait1:CUSTOM_GONE": "forbidden"}, ["CUSTOM_GONE"], id="of a group"),
        pytest.param({"trait_gpu:CUSTOM_GONE": "required"}, ["CUSTOM_GONE"], id="of a named group"),
        pytest.param({"trait:HW_CPU_X86_AVX": "required"}, [], id="standard"),
        pytest.param({"hw:mem_page_size": "1GB", "traits": "x"}, [], id="no trait"),
    ],
)
def test_flavors_that_ask_for_a_trait_that_nobody_created_are_reported(
    extra_specs: dict[str, str], found: list[str]
) -> None:
    factories.make_flavor("m1", extra_specs=extra_specs)
    assert kinds() == []  # our Placement holds no providers: nobody asks it
    make_provider("h1")
    told = [(one.kind, one.name, one.detail) for one in find_problems()]
    assert told == [
        (AuditKind.UNKNOWN_TRAIT, "m1", f"asks for trait {name}, which nobody created")
        for name in found
    ]


def list_from(*, hours: int) -> None:
    """Say how old the VM list is."""
    taken_at = timezone.now() - timedelta(hours=hours)
    Region.objects.create(taken_at=taken_at.strftime("%Y-%m-%dT%H:%M:%SZ"))


def test_who_claimed_after_the_list_was_taken_is_no_orphan() -> None:
    host = make_provider("h1", inventories={"VCPU": 8})
    factories.make_vm(host=factories.make_host("h1", openstack_id=str(host.uuid)))
    consumer = allocate(uuid4(), {host: {"VCPU": 1}})
    list_from(hours=72)
    age(consumer, hours=71)
    assert AuditKind.ORPHAN not in kinds()
    age(consumer, hours=73)
    assert AuditKind.ORPHAN in kinds()


def test_the_doctor_warns_of_bare_vms_only_where_somebody_claims() -> None:
    provider = make_provider("h1", inventories={"VCPU": 8})
    factories.make_vm(host=factories.make_host("h1", openstack_id=str(provider.uuid)))
    (unused, sound) = check_tables()
    assert unused.found.startswith("1 VM without allocations, as nothing was ever claimed")
    assert (unused.severity, sound.severity) == ("ok", "ok")

    allocate(uuid4(), {provider: {"VCPU": 2}})
    (finding,) = check_tables()
    assert finding.severity == "warning"
    assert "1 of kind missing" in finding.found


@pytest.mark.parametrize(("hours", "is_missing"), [(1, False), (3, True)])
def test_a_vm_that_was_deleted_after_the_list_was_taken_is_not_missing(
    hours: int, is_missing: bool
) -> None:
    host = make_provider("h1", inventories={"VCPU": 8})
    vm = factories.make_vm(host=factories.make_host("h1", openstack_id=str(host.uuid)))
    list_from(hours=2)
    AllocationEvent.objects.create(
        created_at=timezone.now() - timedelta(hours=hours),
        consumer_uuid=UUID(vm.openstack_id),
        provider_uuid=host.uuid,
        resource_class="VCPU",
        amount=0,
        previous=1,
        actor="nova",
        request_id="req-1",
    )
    assert (AuditKind.MISSING in kinds()) is is_missing


@pytest.mark.parametrize("text", ["", "yesterday", "2026-02-31T25:00:00Z"])
def test_a_list_without_a_time_is_taken_for_the_present(text: str) -> None:
    region = Region.objects.create(taken_at=text)
    assert region.listed_at is None
