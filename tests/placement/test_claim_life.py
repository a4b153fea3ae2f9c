"""Whatever Nova, Limes, lists and tasks do, claims are the ledger (ADR 0029)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.claim_life import COMMITMENTS, FLAVORS, HOSTS, VMS, Cloud, assert_sound
from tests.clean_tables import CleanTables
from tests.examples import is_thorough
from tests.placement.client import placement_settings
from tests.process_tables import reset_host_table, reset_snapshot

pytestmark = pytest.mark.django_db(transaction=True)

vms = st.sampled_from(VMS)
flavors = st.sampled_from(sorted(FLAVORS))
hosts = st.sampled_from(sorted(HOSTS))
uuids = st.sampled_from(sorted(COMMITMENTS))


def life_in(  # noqa: C901 - a rule for each move
    folder: Path, clean: CleanTables
) -> type[RuleBasedStateMachine]:
    """Return the machine, whose lists of VMs are written to a folder."""

    class Life(RuleBasedStateMachine):
        """A cloud over time."""

        def __init__(self) -> None:
            super().__init__()
            self.cloud = Cloud(folder)

        def teardown(self) -> None:
            clean.restore()
            reset_host_table()
            reset_snapshot()

        @initialize(failover=st.booleans(), gib=st.integers(0, 8))
        def build(self, failover: bool, gib: int) -> None:
            self.cloud.build(failover=failover)
            self.cloud.commit(min(COMMITMENTS), gib)

        @rule(vm=vms, flavor=flavors, host=hosts)
        def boot(self, vm: str, flavor: str, host: str) -> None:
            self.cloud.boot(vm, flavor, host)

        @rule(vm=vms, flavor=flavors)
        def boot_where_told(self, vm: str, flavor: str) -> None:
            self.cloud.boot_where_told(vm, flavor)

        @rule(vm=vms, flavor=flavors)
        def schedule(self, vm: str, flavor: str) -> None:
            self.cloud.schedule(vm, flavor)

        @rule(vm=vms)
        def delete(self, vm: str) -> None:
            self.cloud.delete(vm)

        @rule(vm=vms, host=hosts, flavor=flavors)
        def leave_for(self, vm: str, host: str, flavor: str) -> None:
            self.cloud.leave_for(vm, host, flavor)

        @rule(vm=vms)
        def confirm(self, vm: str) -> None:
            self.cloud.confirm(vm)

        @rule(vm=vms)
        def revert(self, vm: str) -> None:
            self.cloud.revert(vm)

        @rule(vm=vms, host=hosts)
        def evacuate(self, vm: str, host: str) -> None:
            self.cloud.evacuate(vm, host)

        @rule(vm=vms)
        def drop_part(self, vm: str) -> None:
            self.cloud.drop_part(vm)

        @rule(one=vms, other=vms)
        def swap(self, one: str, other: str) -> None:
            self.cloud.swap(one, other)

        @rule(vm=vms, host=hosts)
        def claim_too_much(self, vm: str, host: str) -> None:
            self.cloud.claim_too_much(vm, host)

        @rule(uuid=uuids, gib=st.integers(0, 8))
        def commit(self, uuid: str, gib: int) -> None:
            self.cloud.commit(uuid, gib)

        @rule(host=hosts, is_up=st.booleans())
        def host_goes_down_or_up(self, host: str, is_up: bool) -> None:
            self.cloud.host_is(host, "up" if is_up else "down")

        @rule()
        def note_list(self) -> None:
            self.cloud.note_list()

        @rule()
        def pass_an_hour(self) -> None:
            self.cloud.pass_an_hour()

        @rule(age=st.integers(0, 3))
        def import_list(self, age: int) -> None:
            self.cloud.import_list(age)

        @rule(minutes=st.sampled_from([0, 20, 90]))
        def verify(self, minutes: int) -> None:
            self.cloud.verify(minutes)

        @rule()
        def repair(self) -> None:
            self.cloud.repair()

        @rule()
        def compact(self) -> None:
            self.cloud.compact()

        @rule()
        def fail_over(self) -> None:
            self.cloud.fail_over()

        @rule(all_of_them=st.booleans())
        def end_flights(self, all_of_them: bool) -> None:
            self.cloud.end_flights(all_of_them=all_of_them)

        @rule()
        def reconcile(self) -> None:
            self.cloud.reconcile()

        @invariant()
        def claims_are_the_ledger(self) -> None:
            assert_sound()

    return Life


@pytest.fixture(autouse=True)
def _placement_is_the_source(settings: Any) -> None:
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    scheduler = settings.HEADROOM.scheduler.model_copy(update={"committed_resource_tracking": True})
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={"allocation_source": "placement", "scheduler": scheduler}
    )


def test_claims_are_the_ledger_whatever_happens(tmp_path: Path) -> None:
    run_state_machine_as_test(
        life_in(tmp_path, CleanTables.now()),
        settings=hypothesis_settings(
            max_examples=int(os.environ.get("CLAIM_LIVES", "200" if is_thorough() else "6")),
            stateful_step_count=50 if is_thorough() else 30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
