"""What hosts with a trait may promise of what they have (spec hosts, C.5, D.14.1)."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.models import HostCapacity
from hosts.models import Host, OvercommitRule
from hosts.services import overcommit_rules
from hosts.services.host_orders import HostOrder, change_host
from hosts.services.overcommit_rules import reconcile_overcommit, remove_rule, save_rule
from journal.actors import Actor
from journal.models import AuditEntry
from tests.examples import few
from tests.factories import make_host
from tests.hosts.region_files import load, small_region, write_file

ANN = Actor(name="ann")


def rule(position: int, **facts: Any) -> OvercommitRule:
    row = OvercommitRule(position=position, **facts)
    row.full_clean()
    return save_rule(row, actor=ANN, request_id="r")


def follow() -> int:
    return reconcile_overcommit(actor=ANN, request_id="r")


def promised(name: str = "h1") -> tuple[int, int]:
    """Return vCPUs and GiB of memory that a host may promise, which is its room as well."""
    host = Host.objects.get(name=name)
    room = HostCapacity.objects.get(host=host)
    assert room.effective_vcpus == host.effective_vcpus
    assert room.effective_memory_bytes == host.effective_memory_bytes
    return host.effective_vcpus, host.effective_memory_bytes >> 30


def host_of(*traits: str, name: str = "h1") -> Host:
    return make_host(name, vcpus=32, memory_gib=256, traits=list(traits))


@pytest.mark.django_db(transaction=True)
def test_a_rule_for_a_trait_is_in_force_after_one_look() -> None:
    """As D.14.1 has it: 32 CPUs, ``has CUSTOM_X: cpu 4``."""
    host_of("CUSTOM_X")
    host_of(name="h2")
    one = rule(1, has_trait="CUSTOM_X", cpu_ratio=Decimal(4))

    assert follow() == 1

    assert (promised(), promised("h2")) == ((128, 256), (32, 256))
    entry = AuditEntry.objects.get(action="host_changed")
    assert (entry.object_id, entry.reason) == ("h1", "overcommit rules")
    assert follow() == 0
    remove_rule(pk=one.pk, actor=ANN, request_id="r")
    remove_rule(pk=one.pk, actor=ANN, request_id="r")
    assert follow() == 1
    assert promised() == (32, 256)
    assert Host.objects.get(name="h1").ruled_overcommit is None
    actions = AuditEntry.objects.filter(object_type="overcommit_rule").order_by("pk")
    assert [one.action for one in actions] == ["overcommit_rule_saved", "overcommit_rule_removed"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("traits", "rules", "expected"),
    [
        (["GPU"], [{"has_trait": "GPU", "cpu_ratio": 4}], (128, 256)),
        ([], [{"hasnt_trait": "X", "cpu_ratio": 2}], (64, 256)),
        (["GPU"], [{"hasnt_trait": "GPU", "cpu_ratio": 2}], (32, 256)),
        (
            ["GPU", "STD"],
            [{"has_trait": "STD", "cpu_ratio": 2}, {"has_trait": "GPU", "cpu_ratio": 4}],
            (128, 256),
        ),
        (
            ["GPU"],
            [{"has_trait": "GPU", "cpu_ratio": 4}, {"hasnt_trait": "STD", "memory_ratio": 1.5}],
            (128, 384),
        ),
        (["GPU"], [{"has_trait": "GPU"}], (32, 256)),
    ],
)
def test_the_table_of_rules(
    traits: list[str], rules: list[dict[str, Any]], expected: tuple[int, int]
) -> None:
    host_of(*traits)
    for position, facts in enumerate(rules):
        rule(position, **facts)
    follow()
    assert promised() == expected


@pytest.mark.django_db
@pytest.mark.parametrize(
    "facts",
    [
        {"has_trait": "A", "cpu_ratio": "0.9"},
        {"has_trait": "A", "cpu_ratio": 0},
        {"has_trait": "A", "memory_ratio": -1},
        {"has_trait": "A", "hasnt_trait": "B", "cpu_ratio": 2},
        {"cpu_ratio": 2},
    ],
)
def test_what_is_no_rule_is_refused_by_the_form_and_by_the_database(facts: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OvercommitRule(position=1, **facts).full_clean()
    with pytest.raises(IntegrityError), transaction.atomic():
        OvercommitRule.objects.create(position=1, **facts)


@pytest.mark.django_db(transaction=True)
def test_an_order_about_one_host_goes_before_rules() -> None:
    host_of("A")
    rule(1, has_trait="A", cpu_ratio=4, memory_ratio=2)
    change_host("h1", HostOrder(overcommit={"cpu": Decimal(3)}), actor=ANN, request_id="r")
    assert promised() == (96, 256)

    assert follow() == 1
    assert promised() == (96, 512)
    change_host("h1", HostOrder(overcommit={}), actor=ANN, request_id="r")
    assert promised() == (128, 512)
    assert follow() == 0


@pytest.mark.django_db(transaction=True)
def test_a_host_with_an_object_of_its_own_is_left_to_that() -> None:
    host = host_of("A")
    Host.objects.filter(pk=host.pk).update(is_self_described=True)
    rule(1, has_trait="A", cpu_ratio=4)
    assert follow() == 0
    assert promised() == (32, 256)


@pytest.mark.django_db(transaction=True)
def test_traits_that_come_and_go_are_followed() -> None:
    host = host_of()
    rule(1, has_trait="CUSTOM_OWN", cpu_ratio=2)
    assert follow() == 0
    Host.objects.filter(pk=host.pk).update(custom_traits=["CUSTOM_OWN"])
    assert follow() == 1
    assert promised() == (64, 256)
    Host.objects.filter(pk=host.pk).update(custom_traits=[])
    assert follow() == 1
    assert promised() == (32, 256)


@pytest.mark.django_db(transaction=True)
def test_what_rules_say_outlives_the_lists_of_the_cloud(tmp_path: Path) -> None:
    region = small_region()
    load(write_file(tmp_path, region))
    host = Host.objects.order_by("name")[0]
    listed = (host.vcpus_ratio, host.effective_vcpus, host.effective_memory_bytes)
    one = rule(1, hasnt_trait="CUSTOM_NOBODY_HAS", cpu_ratio=Decimal("2.5"))
    assert follow() == Host.objects.count()
    wanted = (host.total_vcpus - host.reserved_vcpus) * 5 // 2
    generation = Host.objects.get(pk=host.pk).generation

    load(write_file(tmp_path, region))

    host.refresh_from_db()
    assert (host.effective_vcpus, host.generation) == (wanted, generation)
    remove_rule(pk=one.pk, actor=ANN, request_id="r")
    follow()
    host.refresh_from_db()
    assert (host.vcpus_ratio, host.effective_vcpus, host.effective_memory_bytes) == listed


@pytest.mark.django_db(transaction=True)
def test_hosts_follow_once_a_rule_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    hints: list[str] = []
    monkeypatch.setattr(overcommit_rules, "hint_worker", hints.append)
    with transaction.atomic():
        one = rule(1, has_trait="A")
        assert hints == []
    assert hints == ["hosts.reconcile_overcommit"]
    remove_rule(pk=one.pk, actor=ANN, request_id="r")
    assert len(hints) == 2


TRAITS = st.sampled_from(["A", "B"])
RULES = st.tuples(
    TRAITS, st.booleans(), st.none() | st.integers(1, 5), st.none() | st.integers(1, 3)
)


@few(12)
@given(st.sets(TRAITS), st.lists(RULES, max_size=4))
@pytest.mark.django_db(transaction=True)
def test_whatever_the_rules_the_last_word_for_each_resource_counts(
    traits: set[str], rules: list[tuple[str, bool, int | None, int | None]]
) -> None:
    OvercommitRule.objects.all().delete()
    Host.objects.filter(name="h1").delete()
    host_of(*traits)
    cpu = memory = 1
    for position, (trait, has, cpu_ratio, memory_ratio) in enumerate(rules):
        key = {"has_trait" if has else "hasnt_trait": trait}
        rule(position, cpu_ratio=cpu_ratio, memory_ratio=memory_ratio, **key)
        if (trait in traits) is has:
            cpu, memory = cpu_ratio or cpu, memory_ratio or memory
    follow()
    assert promised() == (32 * cpu, 256 * memory)
