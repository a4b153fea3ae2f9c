"""Slots as workloads of the agents of their hosts (spec hosts, D.1, D.12)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models import F

from capacity.agents import nudges
from capacity.agents.following import RETRY_AFTER, Followed, follow_slots, slot_states
from capacity.agents.nudges import FOLLOW_SLOTS, slots_changed
from capacity.models import Reservation
from commitments.models import Commitment
from hosts.agents.models import AgentMode, HostAgent, HostLease
from hosts.agents.workload_models import Workload
from hosts.models import Flavor, Host
from journal.models import AuditEntry
from tests.factories import make_commitment, make_group, make_host, make_slot
from tests.hosts.agents.agents import enrolled, enrolment, make_token, send_enrolment
from tests.hosts.agents.agents import signed as signed_report
from tests.hosts.agents.test_enrolment import code_of
from tests.hosts.agents.test_leases import beat
from tests.hosts.agents.test_results import tell
from tests.hosts.agents.workloads import ANN, agent_named, enforcing, get, make_workload, poll


def follow() -> Followed:
    return follow_slots(actor=ANN, request_id="r")


def slot_on(host: str, **fields: Any) -> Reservation:
    commitment = Commitment.objects.first() or make_commitment()
    return make_slot(commitment, Host.objects.get(name=host), **fields)


def asked_of(host: str = "h1") -> list[tuple[str, str]]:
    rows = Workload.objects.filter(agent__host_name=host).order_by("pk")
    return [(row.owner_id, row.state) for row in rows]


@pytest.mark.django_db(transaction=True)
def test_slots_of_a_host_whose_agent_enforces_become_its_workloads() -> None:
    identity = enforcing("h1")
    make_host("h2")
    enrolled("h2")
    first, second = slot_on("h1", memory_gib=4, vcpus=2), slot_on("h1")
    slot_on("h2")

    assert follow() == Followed(agents=1, created=2)

    assert asked_of() == [(str(first.pk), "pending"), (str(second.pk), "pending")]
    assert asked_of("h2") == []
    told, _ = poll(identity)["reservations"]
    assert told["id"].startswith(f"{first.pk}-")
    assert (told["type"], told["user_id"]) == ("accounting", first.project_id)
    assert told["data"] == {"slot": str(first.uuid)}
    assert told["resources"] == {"cpu": 2, "memory": 4 << 30}
    assert follow() == Followed()
    row = Workload.objects.get(owner_id=str(first.pk))
    assert tell(identity, row).status_code == 201
    assert slot_states([first.pk, second.pk])[first.pk].state == "deployed"
    assert follow() == Followed()


@pytest.mark.django_db(transaction=True)
def test_what_left_a_host_is_removed_there_and_made_where_it_went() -> None:
    identity = enforcing("h1")
    enforcing("h2")
    gone, moved = slot_on("h1"), slot_on("h1")
    follow()
    gone_id = str(gone.pk)
    gone.delete()
    Reservation.objects.filter(pk=moved.pk).update(target_host=Host.objects.get(name="h2"))

    assert follow() == Followed(agents=2, created=1, deleted=2)

    assert asked_of() == [(gone_id, "deleting"), (str(moved.pk), "deleting")]
    assert asked_of("h2") == [(str(moved.pk), "pending")]
    assert follow() == Followed()
    row = Workload.objects.get(owner_id=gone_id)
    assert tell(identity, row, state="deleted").status_code == 200
    assert asked_of()[0] == (gone_id, "deleted")
    assert slot_states([moved.pk])[moved.pk].agent.host_name == "h2"
    assert follow() == Followed()


@pytest.mark.django_db(transaction=True)
def test_a_slot_that_changes_its_size_stays_the_same_workload() -> None:
    identity = enforcing("h1")
    slot = slot_on("h1", memory_gib=4, vcpus=2)
    follow()
    row = Workload.objects.get()
    tell(identity, row)
    first = poll(identity)
    assert first["deployed"] == [row.gwid]
    # VMs fill half of it, and it grows.
    half = {"blocked_memory_bytes": 2 << 30, "blocked_vcpus": 1, "vcpus": 3}
    Reservation.objects.filter(pk=slot.pk).update(**half)

    assert follow() == Followed(agents=1, changed=1)

    page = poll(identity, f"from={first['last_id']}")
    (told,) = page["reservations"]
    assert (told["id"], told["attempt"], told["version"]) == (row.gwid, 2, 2)
    assert told["resources"] == {"cpu": 3, "memory": 4 << 30}
    assert told["data"] == {"slot": str(slot.uuid), "filled": {"cpu": 2, "memory": 2 << 30}}
    assert page["deployed"] == [row.gwid]  # whose agent lost its store still has it, smaller
    assert follow() == Followed()
    assert code_of(tell(identity, row, state="error")) == (409, "attempt_superseded")
    assert tell(identity, row, attempt=2).status_code == 201
    row.refresh_from_db()
    assert (row.state, row.is_made, row.to_delete) == ("deployed", True, False)
    entry = AuditEntry.objects.get(action="host_workload_changed")
    assert entry.before is not None
    assert entry.after is not None
    assert (entry.before["cpus"], entry.after["cpus"]) == (2, 3)
    assert follow() == Followed()


@pytest.mark.django_db(transaction=True)
def test_an_older_agent_is_not_asked_for_what_it_would_drop() -> None:
    identity = enforcing("h1")
    slot = slot_on("h1", memory_gib=4, vcpus=2)
    follow()
    first = Workload.objects.get()
    tell(identity, first)
    Reservation.objects.filter(pk=slot.pk).update(vcpus=3)

    HostAgent.objects.update(abilities=None)  # it was not heard since we know of abilities
    assert follow() == Followed()
    assert asked_of() == [(str(slot.pk), "deployed")]

    HostAgent.objects.update(abilities=[])
    assert follow() == Followed(agents=1, created=1, deleted=1)
    assert asked_of() == [(str(slot.pk), "deleting"), (str(slot.pk), "pending")]
    assert follow() == Followed()


@pytest.mark.django_db(transaction=True)
def test_another_size_is_tried_three_times_however_often_it_changed_before() -> None:
    identity = enforcing("h1")
    slot = slot_on("h1")
    follow()
    tell(identity, Workload.objects.get())
    for attempt in range(2, 6):
        Reservation.objects.filter(pk=slot.pk).update(vcpus=F("vcpus") + 1)
        assert follow() == Followed(agents=1, changed=1)
        tell(identity, Workload.objects.get(), attempt=attempt)
    Reservation.objects.filter(pk=slot.pk).update(vcpus=F("vcpus") + 1)
    follow()
    for attempt in (6, 7, 8):
        sent = tell(identity, Workload.objects.get(), state="error", error="no", attempt=attempt)
        assert sent.status_code == 201
        assert follow() == Followed()
        Workload.objects.update(state_since=F("state_since") - (attempt - 5) * RETRY_AFTER)
        assert follow() == (Followed(agents=1, retried=1) if attempt < 8 else Followed())
    row = Workload.objects.get()
    assert (row.state, row.is_made, row.tries) == ("failed", True, 3)


@pytest.mark.django_db(transaction=True)
@pytest.mark.sql("capacity_flavor_needs")
def test_agents_hear_of_network_disk_io_and_gpus_that_slots_need() -> None:
    identity = enforcing("h1")
    make_group(flavors=[("small", 4096, 1), ("large", 8192, 2)])
    specs = {"quota:vif_outbound_average": "1001", "resources:VGPU": "1"}
    specs["quota:disk_total_bytes_sec"] = "3"
    Flavor.objects.filter(name="large").update(extra_specs=specs)
    slot_on("h1", flavor_name="large", memory_gib=8, vcpus=2)
    slot_on("h1", flavor_name="large", memory_gib=4, vcpus=1)  # a part of it
    plain = slot_on("h1")

    assert follow() == Followed(agents=1, created=3)

    whole, part, none = (told["resources"] for told in poll(identity)["reservations"])
    assert whole == {
        "cpu": 2, "memory": 8 << 30, "network": 1001000, "disk_io": 3, "gpu": 1,
    }  # fmt: skip
    assert part == {"cpu": 1, "memory": 4 << 30, "network": 500500, "disk_io": 2, "gpu": 1}
    assert set(none) == {"cpu", "memory"}
    assert plain.pk == int(Workload.objects.latest("pk").owner_id)
    assert follow() == Followed()
    Flavor.objects.filter(name="large").update(extra_specs={})
    assert follow() == Followed(agents=1, changed=2)


@pytest.mark.django_db(transaction=True)
def test_what_failed_is_tried_again_later_and_three_times_at_most() -> None:
    identity = enforcing("h1")
    slot_on("h1")
    follow()
    row = Workload.objects.get()
    for attempt in (1, 2, 3):
        sent = tell(identity, row, state="error", error="no room", attempt=attempt)
        assert sent.status_code == 201
        assert follow() == Followed()
        Workload.objects.update(state_since=F("state_since") - attempt * RETRY_AFTER)
        assert follow() == (Followed(agents=1, retried=1) if attempt < 3 else Followed())


@pytest.mark.django_db(transaction=True)
def test_what_was_lost_is_asked_for_again_when_the_agent_is_back() -> None:
    identity = enforcing("h1")
    slot_on("h1")
    follow()
    call_command("host_agent", "fence", "h1", "--reason", "test")
    assert asked_of()[0][1] == "lost"
    assert follow() == Followed()
    signed_report(identity, fence_epoch=2).send()
    HostLease.objects.update(liveness="up")

    assert follow() == Followed(agents=1, retried=1)

    row = Workload.objects.get()
    assert (row.attempt, row.state, row.fence_epoch) == (2, "pending", 2)


@pytest.mark.django_db(transaction=True)
def test_a_change_of_mode_removes_or_makes_all() -> None:
    enforcing("h1")
    slot_on("h1")
    follow()

    call_command("host_agent", "mode", "h1", "observe", "--reason", "tests")

    assert [state for _, state in asked_of()] == ["deleting"]
    assert follow() == Followed()
    call_command("host_agent", "mode", "h1", "enforce")
    assert follow() == Followed(agents=1, created=1)
    assert [state for _, state in asked_of()] == ["deleting", "pending"]
    entry = AuditEntry.objects.filter(action="host_agent_mode_set").earliest("id")
    assert (entry.before, entry.after, entry.reason) == (
        {"mode": "enforce"}, {"mode": "observe"}, "tests",
    )  # fmt: skip
    with pytest.raises(CommandError, match="no agent of a host 'h9'"):
        call_command("host_agent", "mode", "h9", "observe")


@pytest.mark.django_db(transaction=True)
def test_looks_and_deletions_at_once_ask_for_each_slot_once() -> None:
    enforcing("h1")
    slots = [slot_on("h1") for _ in range(8)]
    errors: list[Exception] = []

    def look() -> None:
        try:
            barrier.wait(30)
            follow()
        except Exception as error:  # noqa: BLE001 - told to the test
            errors.append(error)
        finally:
            connection.close()

    for _ in range(3):
        barrier = threading.Barrier(4)
        threads = [threading.Thread(target=look) for _ in range(3)]
        for thread in threads:
            thread.start()
        barrier.wait(30)
        Reservation.objects.filter(pk=slots.pop().pk).delete()
        slots.append(slot_on("h1"))
        for thread in threads:
            thread.join(30)
    follow()
    assert not errors
    live = Workload.objects.filter(to_delete=False).values_list("owner_id", flat=True)
    assert sorted(live) == sorted(str(slot.pk) for slot in slots)
    seqs = list(Workload.objects.values_list("seq", flat=True))
    assert len(seqs) == len(set(seqs))
    assert agent_named().change_seq == max(seqs)


@pytest.mark.django_db(transaction=True)
def test_a_worker_is_told_once_slots_are_committed_and_only_where_agents_enforce(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hints: list[str] = []
    monkeypatch.setattr(nudges, "hint_worker", hints.append)
    monkeypatch.setattr(nudges, "KNOWN_SECONDS", 0.0)
    monkeypatch.setattr(nudges._Known, "until", 0.0)
    make_host("h1")
    enrolled("h1")
    slots_changed()
    assert hints == []
    HostAgent.objects.update(mode=AgentMode.ENFORCE)
    with transaction.atomic():
        slots_changed()
        assert hints == []
    assert hints == [FOLLOW_SLOTS]


@pytest.mark.django_db(transaction=True)
def test_a_decommissioned_agent_is_told_so_and_may_enrol_anew() -> None:
    identity = enforcing("h1")
    make_workload()
    with pytest.raises(CommandError, match="1 workloads"):
        call_command("host_agent", "decommission", "h1", "--reason", "old")

    call_command("host_agent", "decommission", "h1", "--reason", "old", "--force")

    assert asked_of() == [("42", "deleted")]
    for answer in (get(identity, "reservations"), beat(identity), signed_report(identity).send()):
        assert code_of(answer) == (410, "decommissioned")
    slot_on("h1")
    assert follow() == Followed()
    again = send_enrolment(enrolment(identity, make_token()))
    assert code_of(again) == (409, "key_in_use")
    enrolled("h1")
    agent = HostAgent.objects.get()
    assert (agent.mode, agent.fence_epoch, agent.decommissioned_at) == ("observe", 2, None)
    assert agent.keys.filter(state="active").count() == 1


@pytest.mark.django_db
def test_timelines_are_renewed_after_a_restored_backup() -> None:
    enforcing("h1")
    before = agent_named().timeline
    call_command("host_agent", "timeline", "renew")
    assert agent_named().timeline != before


@pytest.mark.django_db
def test_no_id_from_before_a_restored_backup_names_something_else_afterwards() -> None:
    enforcing("h1")
    forgotten = [make_workload(number).gwid for number in (42, 43)]
    first = Workload.objects.earliest("pk").pk
    Workload.objects.all().delete()
    HostAgent.objects.update(change_seq=0)
    sequence = "pg_get_serial_sequence('hosts_workload', 'id')"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT setval({sequence}, %s, false)", [first])
    for _ in range(2):
        call_command("host_agent", "timeline", "renew")
        given = [make_workload(number).gwid for number in (42, 43)]
        assert not set(given) & set(forgotten)
        forgotten += given


@pytest.mark.django_db
def test_what_a_backup_forgot_is_removed_by_its_host_alone() -> None:
    identity = enforcing("h1")
    enforcing("h2")
    order = ("host_agent", "remove", "h1", "42-7", "--type", "accounting", "--reason", "old")
    call_command(*order)
    call_command(*order)  # it is known now, and goes already
    row = Workload.objects.get()
    assert (row.gwid, row.state, row.type) == ("42-7", "deleting", "accounting")
    (told,) = poll(identity)["reservations"]
    assert (told["id"], told["to_delete"]) == ("42-7", True)
    for wrong, words in (
        (("h2", "42-7", "accounting", "old"), "another host has"),
        (("h1", "backup", "accounting", "old"), "must be like 42-1"),
        (("h1", "42-8", "../x", "old"), "must be like 42-1"),
        (("h1", "42-8", "accounting", " "), "a reason is needed"),
        (("h9", "42-8", "accounting", "old"), "no agent of a host 'h9'"),
    ):
        host, gwid, kind, reason = wrong
        with pytest.raises(CommandError, match=words):
            call_command("host_agent", "remove", host, gwid, "--type", kind, "--reason", reason)
    assert tell(identity, row, state="deleted").status_code == 200
    assert not Workload.objects.exclude(state="deleted").exists()
