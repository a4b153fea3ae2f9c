"""Settings of the specifications that nothing else varies (spec commitments, 21; liquid, 19)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from capacity.models import ProjectQuota
from commitments.models import Commitment, SlotCheck
from commitments.services.quota_usage import reconcile_changed, reconcile_full
from commitments.services.sync import configured_rules
from config.environment import ConfigurationError, load_environment
from hosts.models import Instance
from tests.commitments.change_requests import CORES, NOW, change, decide, decide_ram
from tests.commitments.slot_worlds import VM_GIB, accepted_slot, put_into, verify
from tests.factories import make_commitment, make_group, make_host, make_quota, make_vm

pytestmark = pytest.mark.django_db

A = "aaaaaaaa-0000-4000-8000-000000000001"
ROOT = Path(__file__).parents[2]
SHOW = """
import json
import django
django.setup()
from tests.schedule import beat_schedule
beat = {name: entry["schedule"] for name, entry in beat_schedule().items()}
seconds = {name: one.run_every.total_seconds() for name, one in beat.items()
           if hasattr(one, "run_every")}
print(json.dumps(seconds))
"""
KEYSTONE = {
    "HEADROOM_KEYSTONE__AUTH_URL": "http://keystone",
    "HEADROOM_KEYSTONE__USERNAME": "headroom",
    "HEADROOM_KEYSTONE__PASSWORD": "secret",
    "HEADROOM_KEYSTONE__PROJECT_NAME": "service",
}


def use(settings: Any, section: str, **changes: Any) -> None:
    changed = getattr(settings.HEADROOM, section).model_copy(update=changes)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={section: changed})


@pytest.fixture
def group() -> None:
    make_group("hana_1", flavors=[("small", 1024, 4), ("half", VM_GIB * 1024, 20)], ram_unit_gib=1)


def beat(**variables: str) -> dict[str, float]:
    """Return what beat starts how often with some variables, in a process of its own."""
    environ = {name: entry for name, entry in os.environ.items() if name[:9] != "HEADROOM_"}
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", SHOW],
        cwd=ROOT,
        env={
            **environ,
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "HEADROOM_DEBUG": "1",
            **KEYSTONE,
            **variables,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def test_beat_runs_at_the_intervals_of_the_specifications_unless_told_otherwise() -> None:
    default = beat()
    assert default["slots"] == 15
    assert default["commitments-due"] == 5
    assert (default["usage"], default["quota"], default["sync"]) == (300, 300, 3600)
    chosen = beat(
        HEADROOM_SLOTS__CHECK_INTERVAL_SECONDS="1m",
        HEADROOM_RETRY__DISPATCH_INTERVAL_SECONDS="9s",
        HEADROOM_USAGE__COOLDOWN_SECONDS="2m",
        HEADROOM_QUOTA__FULL_RECONCILE_INTERVAL_SECONDS="3m",
        HEADROOM_SYNC__INTERVAL_SECONDS="2h",
    )
    assert chosen["slots"] == 60
    assert chosen["commitments-due"] == 9
    assert (chosen["usage"], chosen["quota"], chosen["sync"]) == (120, 180, 7200)
    assert "sync" not in beat(HEADROOM_SYNC__ENABLED="false")


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("grace_seconds", "events"), [(900, {}), (300, {"never_arrived": 1})])
def test_a_new_vm_has_the_grace_period_to_appear(
    settings: Any, grace_seconds: int, events: dict[str, int]
) -> None:
    use(settings, "slots", allocation_grace_seconds=grace_seconds)
    put_into(accepted_slot(make_host("host-1", memory_gib=960, vcpus=80)), "vm", minutes=10)
    assert verify().events == events


@pytest.mark.usefixtures("group")
def test_every_slot_is_looked_at_after_the_active_interval(settings: Any) -> None:
    use(settings, "slots", full_check_seconds=120)
    accepted_slot(make_host("host-1", memory_gib=960, vcpus=80))
    verify()
    first = SlotCheck.objects.get().fully_checked_at
    verify(1, is_full=False)
    assert SlotCheck.objects.get().fully_checked_at == first
    verify(3, is_full=False)
    assert SlotCheck.objects.get().fully_checked_at != first


@pytest.mark.usefixtures("group")
def test_what_waits_is_tried_again_after_the_retry_interval(settings: Any) -> None:
    use(settings, "retry", base_seconds=7, cap_seconds=9)
    make_host("host-1", memory_gib=4, vcpus=16)
    assert decide_ram("alpha", change(A, 99, "pending")).rejection_reason == ""
    row = Commitment.objects.get()
    assert row.ready_reason == "Reserving"
    assert row.next_reconcile_at == NOW + timedelta(seconds=7)


@pytest.mark.usefixtures("group")
def test_rejections_say_when_to_come_again(settings: Any) -> None:
    use(
        settings,
        "liquid",
        retry_after_capacity_seconds=1000,
        retry_after_transient_seconds=50,
    )
    make_host("host-1", memory_gib=4, vcpus=16)
    assert decide_ram("alpha", change(A, 99)).retry_at == NOW + timedelta(seconds=1000)
    unknown = decide({"alpha": {CORES: [change(A, 1)]}}, zone="az-9")
    assert unknown.retry_at == NOW + timedelta(seconds=50)


def test_the_rules_of_the_syncer_are_those_of_the_settings(settings: Any) -> None:
    rules = configured_rules()
    assert (rules.stale_threshold, rules.stale_grace) == (3, timedelta(hours=6))
    assert (rules.max_drop_ratio, rules.max_drop_count) == (0.2, 5)
    assert rules.expired_retention == timedelta(hours=24)
    use(
        settings,
        "sync",
        stale_threshold=4,
        stale_grace_seconds=60,
        max_drop_ratio=0.5,
        max_drop_count=6,
        expired_retention_seconds=30,
    )
    rules = configured_rules()
    assert (rules.stale_threshold, rules.stale_grace) == (4, timedelta(minutes=1))
    assert (rules.max_drop_ratio, rules.max_drop_count) == (0.5, 6)
    assert rules.expired_retention == timedelta(seconds=30)


class TestQuota:
    """Spec liquid, 14: ``crStateFilter`` and ``enableHVDiff``."""

    @pytest.fixture(autouse=True)
    def region(self, group: None) -> None:
        host = make_host("host-1", memory_gib=960, vcpus=80)
        make_vm("vm-1", host=host, memory_gib=VM_GIB, vcpus=20, flavor_name="half")
        make_quota("project-1", "az-a", {})

    def row(self) -> ProjectQuota:
        return ProjectQuota.objects.get()

    @pytest.mark.parametrize(
        ("states", "covered_gib"), [(("confirmed", "guaranteed"), 40), (("confirmed",), 0)]
    )
    def test_commitments_of_chosen_states_cover(
        self, settings: Any, states: tuple[str, ...], covered_gib: int
    ) -> None:
        use(settings, "quota", commitment_states=states)
        make_commitment(
            amount_gib=40,
            state="guaranteed",
            used_memory_bytes=40 << 30,
            last_usage_reconcile_at=NOW,
        )
        reconcile_full(now=NOW)
        assert self.row().payg_usage["hw_version_hana_1_ram"] == VM_GIB - covered_gib

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("follows", [True, False])
    def test_vms_are_followed_unless_switched_off(self, settings: Any, *, follows: bool) -> None:
        use(settings, "quota", follow_vms=follows)
        reconcile_full(now=NOW)
        Instance.objects.all().delete()
        assert reconcile_changed(now=NOW).projects == (1 if follows else 0)
        used = 0 if follows else VM_GIB
        assert self.row().total_usage.get("hw_version_hana_1_ram", 0) == used
        make_commitment(amount_gib=40)
        assert reconcile_changed(now=NOW).projects == 1
        assert self.row().total_usage.get("hw_version_hana_1_ram", 0) == 0


def test_slots_are_not_looked_at_less_often_than_all_of_them() -> None:
    """Spec 21: grace requeue <= active requeue."""
    variables = {
        "HEADROOM_DEBUG": "1",
        "HEADROOM_SLOTS__CHECK_INTERVAL_SECONDS": "61s",
        "HEADROOM_SLOTS__FULL_CHECK_SECONDS": "1m",
    }
    with pytest.raises(ConfigurationError, match="must not be above full_check_seconds"):
        load_environment(variables)
