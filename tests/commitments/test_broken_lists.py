"""Lists that were cut short release nothing: the run says why, a metric and an alert fire."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.utils import timezone

from capacity.models import ProjectQuota, Reservation, ReservationAllocation
from commitments.models import (
    Commitment,
    InstanceAssignment,
    SlotCheck,
    SyncOutcome,
    SyncRun,
)
from commitments.services.usage import reconcile_all_usage
from commitments.services.verification import verify_slots
from hosts.models import Host, Instance
from hosts.region.node import RegionFileError
from hosts.region.servers import HOST, HYPERVISOR
from journal.actors import task_actor
from tests.commitments.slot_worlds import put_into
from tests.factories import make_commitment, make_slot
from tests.hosts.region_files import LIMES, REGION, edited, load
from tests.ledger import assert_ledger_holds, fingerprint
from tests.scraping import scrape

pytestmark = pytest.mark.django_db

ACTOR = task_actor("test")
RULES = Path(__file__).resolve().parents[2] / "deploy/prometheus/commitments.rules.yaml"
HELD_TABLES = ("commitments_instanceassignment", "hosts_host", "hosts_instance")
Json = dict[str, Any]  # Any: a region file


def settle() -> None:
    """Let every task that could release something run, twice, with time in between."""
    for minutes in (1, 120):
        now = timezone.now() + timedelta(minutes=minutes)
        verify_slots(actor=ACTOR, request_id="r", now=now, is_full=True)
        reconcile_all_usage(actor=ACTOR, request_id="r", now=now)


@pytest.fixture
def loaded() -> None:
    """A real region with commitments that are held and cover VMs."""
    load(REGION, LIMES, place=True)
    Commitment.objects.update(start_time=None)
    for row in Commitment.objects.exclude(accepted_spec=None):
        row.accepted_spec = {**(row.accepted_spec or {}), "startTime": None}
        row.save()
    settle()
    assert Reservation.objects.filter(target_host__isnull=False).exists()
    assert InstanceAssignment.objects.exists()


def last_run() -> SyncRun:
    return SyncRun.objects.get(pk=max(SyncRun.objects.values_list("pk", flat=True)))


def half(section: str, part: str) -> Callable[[Json], None]:
    def cut(content: Json) -> None:
        del content[section][part][: len(content[section][part]) // 2]

    return cut


def none_of(section: str, part: str) -> Callable[[Json], None]:
    def cut(content: Json) -> None:
        content[section][part] = []

    return cut


def expression(alert: str) -> str:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return next(
        str(rule["expr"]) for group in groups for rule in group["rules"] if rule["alert"] == alert
    )


def is_firing(alert: str) -> bool:
    """Whether a scrape shows what an alert of the form ``max by (...) (series) == 1`` waits for."""
    of_all, _, wanted = expression(alert).partition(" == ")
    series = of_all.rpartition("(")[2].rstrip(")")
    shown = scrape().splitlines()
    samples = [line.rsplit(" ", 1) for line in shown if not line.startswith("#")]
    return any(
        name.partition("{")[0] == series and float(sample) == float(wanted)
        for name, sample in samples
    )


CUTS = [
    pytest.param(half("compute", "servers"), "compute.servers", 53, id="half of the VMs"),
    pytest.param(none_of("compute", "servers"), "compute.servers", 53, id="no VM"),
    pytest.param(half("compute", "hypervisors"), "compute.hypervisors", 18, id="half of the hosts"),
    pytest.param(half("compute", "flavors"), "compute.flavors", 12, id="half of the flavors"),
    pytest.param(none_of("compute", "aggregates"), "compute.aggregates", 6, id="no aggregate"),
    pytest.param(none_of("identity", "projects"), "identity.projects", 6, id="no project"),
]


@pytest.mark.usefixtures("loaded")
class TestImport:
    @pytest.mark.parametrize(("cut", "section", "before"), CUTS)
    def test_pruning_import_of_a_list_that_shrank_releases_nothing(
        self, tmp_path: Path, cut: Callable[[Json], None], section: str, before: int
    ) -> None:
        held = fingerprint(*HELD_TABLES)
        assert not is_firing("RegionImportRefused")
        path = edited(REGION, tmp_path, cut)
        report = load(path, prune=True, place=True)
        assert section in report.refusals
        settle()
        assert [one for one in fingerprint(*HELD_TABLES) if one not in held] == []
        assert_ledger_holds()
        run = last_run()
        assert run.source == "region_file"
        assert (run.outcome, run.error_code) == ("guarded", "list_shrank")
        assert f"{section} shrank from {before} to" in run.message
        assert is_firing("RegionImportRefused")

    def test_limes_list_of_a_file_that_shrank_removes_no_commitment(self, tmp_path: Path) -> None:
        kept = Commitment.objects.count()
        for number in range(8):
            row = Commitment.objects.exclude(accepted_spec=None).first()
            assert row is not None
            row.pk, row.commitment_uuid = None, f"planned-only-{number:06}"
            row.state, row.accepted_spec = "planned", None
            row.save(force_insert=True)
        report = load(edited(LIMES, tmp_path, none_of("limes", "commitments")), prune=True)
        assert "limes.commitments" in report.refusals
        assert Commitment.objects.count() == kept + 8

    def test_quota_list_of_a_file_that_shrank_lifts_no_quota(self, tmp_path: Path) -> None:
        for number in range(8):
            ProjectQuota.objects.create(project_id=f"p{number}", zone="az-a")
        before = ProjectQuota.objects.count()
        report = load(edited(LIMES, tmp_path, none_of("limes", "quotas")), prune=True)
        assert "limes.quotas" in report.refusals
        assert ProjectQuota.objects.count() == before

    def test_next_whole_import_ends_the_alarm(self, tmp_path: Path) -> None:
        load(edited(REGION, tmp_path, half("compute", "servers")), prune=True)
        assert is_firing("RegionImportRefused")
        load(REGION, prune=True)
        assert last_run().outcome == SyncOutcome.SUCCESS
        assert not is_firing("RegionImportRefused")

    def test_operator_may_accept_what_a_file_lacks(self, tmp_path: Path) -> None:
        path = edited(REGION, tmp_path, half("compute", "servers"))
        report = load(path, prune=True, accepts_shrink=True)
        assert report.refusals == {}
        assert Instance.objects.count() == 27
        assert last_run().outcome == SyncOutcome.SUCCESS

    def test_command_prints_what_was_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = edited(REGION, tmp_path, half("compute", "servers"))
        call_command("import_region", str(path), "--prune", "--no-place")
        assert "refused: compute.servers shrank from 53 to 27" in capsys.readouterr().out
        call_command("import_region", str(path), "--prune", "--no-place", "--accept-shrink")
        assert "refused" not in capsys.readouterr().out

    def test_vms_that_lost_their_hosts_keep_slots_and_commitments(self, tmp_path: Path) -> None:
        """Without pruning: the list is as long as before, and says where no VM is."""

        def unplace(content: Json) -> None:
            for server in content["compute"]["servers"]:
                server |= {HOST: None, HYPERVISOR: None}

        assigned = set(InstanceAssignment.objects.values_list("vm_uuid", "commitment_id"))
        slots = set(Reservation.objects.values_list("pk", "target_host_id"))
        report = load(edited(REGION, tmp_path, unplace), place=True)
        refused = [key for key in report.refusals if key.startswith("slots of ")]
        assert refused
        settle()
        assert set(InstanceAssignment.objects.values_list("vm_uuid", "commitment_id")) == assigned
        assert set(Reservation.objects.values_list("pk", "target_host_id")) == slots
        run = last_run()
        assert (run.outcome, run.error_code) == ("guarded", "list_shrank")
        assert "the VM list shrank from" in run.message
        assert is_firing("VmListRefused")
        assert is_firing("RegionImportRefused")


def keeping(count: int, zone: str = "az-c") -> Callable[[Json], None]:
    """Return a cut that leaves so many VMs of a zone."""

    def cut(content: Json) -> None:
        servers = content["compute"]["servers"]
        of_zone = [one for one in servers if one["OS-EXT-AZ:availability_zone"] == zone]
        content["compute"]["servers"] = [one for one in servers if one not in of_zone[count:]]

    return cut


class TestSmallZone:
    """A zone of few VMs or commitments that a file leaves out, while its hosts are listed."""

    @pytest.fixture(autouse=True)
    def small(self, tmp_path: Path) -> None:
        path = edited(REGION, tmp_path, keeping(3))
        load(path, LIMES, prune=True, accepts_shrink=True, place=True)
        settle()
        assert Instance.objects.filter(host__zone="az-c").count() == 3

    def test_pruning_import_without_its_vms_keeps_them(self, tmp_path: Path) -> None:
        held = fingerprint(*HELD_TABLES)
        report = load(edited(REGION, tmp_path, keeping(0)), prune=True, place=True)
        assert report.refusals["compute.servers"].startswith(
            "compute.servers of az-c shrank from 3 to 0: nothing of these zones is removed"
        )
        settle()
        assert [one for one in fingerprint(*HELD_TABLES) if one not in held] == []
        run = last_run()
        assert (run.outcome, run.error_code) == ("guarded", "list_shrank")
        assert is_firing("RegionImportRefused")

    def test_other_zones_are_pruned_all_the_same(self, tmp_path: Path) -> None:
        def cut(content: Json) -> None:
            keeping(0)(content)
            keeping(14, "az-b")(content)

        load(edited(REGION, tmp_path, cut), prune=True, place=True)
        assert Instance.objects.filter(host__zone="az-c").count() == 3
        assert Instance.objects.filter(host__zone="az-b").count() == 14

    def test_one_that_is_left_is_believed(self, tmp_path: Path) -> None:
        report = load(edited(REGION, tmp_path, keeping(1)), prune=True, place=True)
        assert "compute.servers" not in report.refusals
        assert Instance.objects.filter(host__zone="az-c").count() == 1

    def test_operator_may_accept_it(self, tmp_path: Path) -> None:
        path = edited(REGION, tmp_path, keeping(0))
        lost = Instance.objects.filter(host__zone="az-c").first()
        assert lost is not None
        slot = make_slot(make_commitment(), lost.host, memory_gib=480, vcpus=40)
        inside = put_into(slot, lost.openstack_id, minutes=60, is_confirmed=True)

        call_command("import_region", str(path), "--prune", "--no-place", "--accept-shrink")

        assert not Instance.objects.filter(host__zone="az-c").exists()
        settle()
        checked = verify_slots(actor=ACTOR, request_id="r", is_full=True)
        assert checked.refused == {}, "said once, to the import"
        assert not ReservationAllocation.objects.filter(pk=inside.pk).exists()
        assert not is_firing("VmListRefused")

    def test_vms_that_moved_to_another_zone_are_not_missed(self, tmp_path: Path) -> None:
        def move(content: Json) -> None:
            keeping(3)(content)
            servers = content["compute"]["servers"]
            target = next(s for s in servers if s["OS-EXT-AZ:availability_zone"] == "az-b")
            for server in servers:
                if server["OS-EXT-AZ:availability_zone"] == "az-c":
                    server |= {key: target[key] for key in (HOST, HYPERVISOR)}
                    server["OS-EXT-AZ:availability_zone"] = "az-b"

        path = edited(REGION, tmp_path, move)
        report = load(path, prune=True)
        assert "compute.servers" not in report.refusals

    def test_limes_list_without_a_zone_removes_nothing_of_it(self, tmp_path: Path) -> None:
        for number in range(2):
            row = Commitment.objects.filter(zone="az-c").exclude(accepted_spec=None).first()
            assert row is not None
            row.pk, row.commitment_uuid = None, f"planned-only-{number:06}"
            row.state, row.accepted_spec, row.zone = "planned", None, "az-z"
            row.save(force_insert=True)
        host = Host.objects.filter(zone="az-c").first()
        assert host is not None
        Host.objects.filter(pk=host.pk).update(zone="az-z")
        report = load(LIMES, prune=True)
        assert report.refusals["limes.commitments"].startswith(
            "limes.commitments of az-z shrank from 2 to 0"
        )
        assert Commitment.objects.filter(zone="az-z").count() == 2
        assert last_run().outcome == SyncOutcome.GUARDED
        assert load(LIMES, prune=True, accepts_shrink=True).refusals == {}
        assert not Commitment.objects.filter(zone="az-z").exists()


class TestRunRow:
    def test_good_import_writes_its_row(self) -> None:
        load(REGION, LIMES)
        run = last_run()
        assert (run.source, run.outcome, run.message) == ("region_file", "success", "")
        assert run.finished_at is not None
        assert run.counts["compute.servers created"] == 53
        shown = scrape()
        begun = "cortex_region_import_last_success_timestamp_seconds "
        (line,) = [line for line in shown.splitlines() if line.startswith(begun)]
        assert float(line.removeprefix(begun)) == run.started_at.timestamp()
        assert "cortex_region_import_refused 0.0" in shown

    def test_malformed_file_fails_the_run_and_says_why(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.json"
        path.write_text('{"compute": {"servers": [')
        with pytest.raises(RegionFileError):
            load(path)
        run = last_run()
        assert (run.outcome, run.error_code) == ("failed", "malformed_region_file")
        assert "broken.json" in run.message

    def test_dry_run_leaves_no_row(self) -> None:
        load(REGION, is_dry_run=True)
        assert not SyncRun.objects.exists()

    def test_import_that_died_is_abandoned_by_the_next(self) -> None:
        died = SyncRun.objects.create(source="region_file", started_at=timezone.now())
        syncing = SyncRun.objects.create(source="limes", started_at=timezone.now())
        load(REGION)
        died.refresh_from_db()
        syncing.refresh_from_db()
        assert (died.outcome, syncing.outcome) == ("abandoned", "")

    def test_syncer_ignores_imports(self) -> None:
        load(REGION)
        assert not SyncRun.objects.filter(source="limes").exists()


@pytest.mark.usefixtures("loaded")
def test_hosts_that_nobody_hears_from_keep_their_slots() -> None:
    slots = set(Reservation.objects.values_list("pk", "target_host_id"))
    zone = Host.objects.exclude(zone="").values_list("zone", flat=True)[0]
    Host.objects.update(state="down", down_since=timezone.now() - timedelta(days=1))
    settle()
    assert set(Reservation.objects.values_list("pk", "target_host_id")) == slots
    assert "are down or leaving at once" in SlotCheck.objects.get(zone=zone).host_refusal
    assert is_firing("HostListRefused")
    Host.objects.update(state="up")
    settle()
    assert not is_firing("HostListRefused")
