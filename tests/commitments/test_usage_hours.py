"""Hours of commitments: what usage runs add, what a gap is, what is forgotten, what is exported."""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from commitments.domain.focus import COLUMNS, Charge, Price, focus_rows
from commitments.domain.statuses import ResourceType
from commitments.models import Commitment, UsageCheck
from commitments.selectors.focus import ChargeSpan, focus_file, month_start
from commitments.services.usage import reconcile_all_usage
from commitments.services.usage_hours import forget_usage_hours, keep_usage_hours
from commitments.usage_models import CommitmentAccount, CommitmentHour, GroupPrice, ObservedHour
from config.launcher.environment import pip
from config.launcher.locks import install_arguments, lock_of
from config.launcher.places import locked, this_checkout
from hosts.models import Host
from journal.actors import task_actor
from scheduling.resources import GIB
from tests.factories import make_commitment, make_commitment_hour, make_group, make_host, make_vm

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime(2026, 11, 10, 12, 50, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
A = "aaaaaaaa-0000-4000-8000-000000000001"
URL = "/api/v1/commitments/focus"


@pytest.fixture(autouse=True)
def host() -> Host:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    return make_host("h1", zone="az-a", memory_gib=100, vcpus=400)


def commitment(uuid: str = A, gib: int = 2, **fields: Any) -> Commitment:
    row = make_commitment(uuid, amount_gib=gib, **{"accepted_at": NOW - HOUR, **fields})
    row.accepted_spec = {
        **(row.accepted_spec or {}),
        "startTime": row.start_time and row.start_time.isoformat(),
        "endTime": row.end_time and row.end_time.isoformat(),
    }
    row.save()
    return row


def look(minutes: int) -> int:
    """Do a whole usage run so many minutes after the first, and keep what it saw."""
    now = NOW + minutes * MINUTE
    reconcile_all_usage(actor=task_actor("test"), request_id="look", now=now)
    return keep_usage_hours().hours


def hours() -> list[tuple[str, int, int, int]]:
    """Clock time, observed minutes, means of promised and used MiB of each hour."""
    return [
        (
            f"{row.at:%H:%M}",
            row.observed_seconds // 60,
            row.promised_amount_seconds // row.observed_seconds,
            row.used_amount_seconds // row.observed_seconds,
        )
        for row in CommitmentHour.objects.order_by("at", "account_id")
    ]


def test_runs_add_what_was_promised_and_used_since_the_run_before(host: Host) -> None:
    row = commitment()
    make_vm(host=host, memory_gib=1, vcpus=4, project_id=row.project_id)
    assert look(0) == 0
    look(5)
    look(15)
    assert hours() == [("12:00", 10, 2048, 1024), ("13:00", 5, 2048, 1024)]
    observed = ObservedHour.objects.order_by("at").values_list("observed_seconds", flat=True)
    assert list(observed) == [600, 300]


def test_the_same_run_kept_twice_adds_nothing() -> None:
    commitment()
    look(0)
    look(10)
    before = hours()
    assert keep_usage_hours().hours == 0
    assert look(10) == 0
    assert look(5) == 0
    assert hours() == before == [("12:00", 10, 2048, 0)]


def test_a_run_that_dies_before_its_commit_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    commitment()
    look(0)
    with monkeypatch.context() as patched:
        patched.setattr("commitments.services.usage_hours.ADD_OBSERVED", "SELECT 1 / 0")
        with pytest.raises(Exception, match=r"placeholder|parameter|zero"):
            look(10)
    assert (hours(), ObservedHour.objects.count()) == ([], 0)
    look(10)
    assert hours() == [("12:00", 10, 2048, 0)]


def test_runs_too_far_apart_leave_a_gap() -> None:
    commitment()
    for minutes in (0, 5, 60, 65):
        look(minutes)
    assert hours() == [("12:00", 5, 2048, 0), ("13:00", 5, 2048, 0)]
    assert ObservedHour.objects.count() == 2


def test_a_commitment_that_begins_changes_and_ends_counts_to_the_second() -> None:
    look(0)
    row = commitment(
        accepted_at=NOW + 2 * MINUTE,
        start_time=NOW + 2 * MINUTE,
        end_time=NOW + 22 * MINUTE,
    )
    look(5)
    row.accepted_spec["amount"] = 4 * GIB  # type: ignore[index]  # it was accepted
    row.accepted_at = NOW + 8 * MINUTE
    row.save()
    look(18)
    look(25)
    assert hours() == [("12:00", 8, (6 * 2048 + 2 * 4096) // 8, 0), ("13:00", 12, 4096, 0)]
    assert not CommitmentAccount.objects.filter(is_open=True).exists()


def test_what_was_deleted_counts_until_it_was_last_seen() -> None:
    row = commitment()
    look(0)
    look(5)
    row.delete()
    look(10)
    assert hours() == [("12:00", 5, 2048, 0)]


def test_another_project_has_another_account() -> None:
    row = commitment()
    look(0)
    Commitment.objects.filter(pk=row.pk).update(project_id="other", accepted_at=NOW + 2 * MINUTE)
    look(5)
    found = CommitmentHour.objects.values_list("account__project_id", "observed_seconds")
    assert list(found) == [("other", 180)]


def test_hours_of_more_than_thirteen_months_are_forgotten_with_their_accounts() -> None:
    old, new = (commitment(uuid) for uuid in (A, A.replace("1", "2")))
    for row, days in ((old, 401), (new, 399)):
        make_commitment_hour(row, at=NOW - timedelta(days=days))
    CommitmentAccount.objects.update(is_open=False)
    assert forget_usage_hours(now=NOW) == 3
    assert [row.commitment_uuid for row in CommitmentAccount.objects.all()] == [new.commitment_uuid]
    assert ObservedHour.objects.count() == CommitmentHour.objects.count() == 1


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def month_rows(span: ChargeSpan = ChargeSpan.DAY) -> list[dict[str, str]]:
    return rows_of("".join(focus_file(month_start("2026-11"), span)))


def grow_month() -> None:
    priced = commitment()
    free = commitment(A.replace("1", "2"), group="unpriced")
    for days, promised in ((0, 2048), (1, 4096)):
        for row in (priced, free):
            for number in range(2):
                at = NOW.replace(minute=0) + timedelta(days=days, hours=number)
                make_commitment_hour(row, at=at, promised=promised, used=700 + number)
    GroupPrice.objects.all().delete()
    for day, price in ((1, "0.5"), (11, "0.25")):
        GroupPrice.objects.create(
            flavor_group_name="hana_1",
            resource_type="memory",
            valid_from=datetime(2026, 11, day, tzinfo=UTC),
            currency="EUR",
            hourly_price=Decimal(price),
        )


def test_a_month_has_used_and_unused_that_sum_to_the_promise_at_the_price_of_the_time() -> None:
    grow_month()
    rows = [row for row in month_rows() if row["CapacityReservationId"] == A]
    told = [
        (
            row["ChargePeriodStart"][:10],
            row["CapacityReservationStatus"],
            row["PricingQuantity"],
            row["BilledCost"],
            row["BillingCurrency"],
        )
        for row in rows
    ]
    assert told == [
        ("2026-11-10", "Used", "1.368164062", "0.684082031", "EUR"),
        ("2026-11-10", "Unused", "2.631835938", "1.315917969", "EUR"),
        ("2026-11-11", "Used", "1.368164062", "0.3420410155", "EUR"),
        ("2026-11-11", "Unused", "6.631835938", "1.6579589845", "EUR"),
    ]
    assert {row["x_PlatformObservedHours"] for row in rows} == {"2"}


def test_a_group_without_a_price_costs_nothing_and_says_so() -> None:
    grow_month()
    rows = [row for row in month_rows() if row["x_FlavorGroup"] == "unpriced"]
    assert len(rows) == 4
    assert {(row["BilledCost"], row["BillingCurrency"]) for row in rows} == {("0", "XXX")}
    assert {row["x_PriceStatus"] for row in rows} == {"No price: costs are 0"}


def test_hours_of_a_file_are_the_days_of_the_other() -> None:
    grow_month()

    def sums(span: ChargeSpan) -> dict[tuple[str, ...], Decimal]:
        total: dict[tuple[str, ...], Decimal] = {}
        for row in month_rows(span):
            key = (row["CapacityReservationId"], row["ChargePeriodStart"][:10])
            total[key] = total.get(key, Decimal(0)) + Decimal(row["PricingQuantity"])
        return total

    assert len(month_rows(ChargeSpan.HOUR)) == 16
    assert sums(ChargeSpan.HOUR) == sums(ChargeSpan.DAY)


amounts = st.integers(0, 2**60)


@given(
    pair=st.tuples(amounts, amounts).map(sorted),
    kind=st.sampled_from(list(ResourceType)),
    hourly=st.none() | st.decimals(0, 1000, places=9),
)
def test_used_and_unused_sum_to_the_promise_whatever_it_is(
    pair: list[int], kind: ResourceType, hourly: Decimal | None
) -> None:
    charge = Charge(
        commitment_uuid=A, project_id="p", project_name="", domain_id="", domain_name="",
        zone="z", group="g", resource_type=kind, start=NOW, end=NOW + HOUR, month_start=NOW,
        month_end=NOW + HOUR, observed_seconds=3600, platform_seconds=3600,
        promised_amount_seconds=pair[1], used_amount_seconds=pair[0],
        price=None if hourly is None else Price(currency="EUR", hourly=hourly),
    )  # fmt: skip
    rows = focus_rows(charge)
    parts = [Decimal(row["PricingQuantity"]) for row in rows]
    assert sum(parts) == Decimal(rows[0]["x_PromisedQuantity"])
    assert min(parts) >= 0
    assert set(rows[0]) <= set(COLUMNS)


class TestCommand:
    def test_writes_the_file_and_tells_the_gap(self, tmp_path: Path) -> None:
        grow_month()
        out, err = StringIO(), StringIO()
        call_command("export_focus", month="2026-11", stdout=out, stderr=err)
        assert out.getvalue() == "".join(focus_file(month_start("2026-11"), ChargeSpan.DAY))
        file = tmp_path / "november.csv"
        call_command("export_focus", month="2025-01", output=file, stdout=out, stderr=err)
        assert file.read_text().splitlines() == [",".join(COLUMNS)]
        assert "31d 0h were not observed" in err.getvalue()

    @pytest.mark.parametrize("month", ["2026-13", "2026", "26-01", "2026-11-01", ""])
    def test_refuses_what_is_no_month(self, month: str) -> None:
        with pytest.raises(CommandError, match="--month"):
            call_command("export_focus", month=month)

    def test_says_which_file_it_cannot_write(self, tmp_path: Path) -> None:
        with pytest.raises(CommandError, match="cannot write"):
            call_command("export_focus", month="2026-11", output=tmp_path / "no" / "file")


class TestAddress:
    @pytest.fixture(autouse=True)
    def noauth(self, settings: Any) -> None:
        settings.HEADROOM = django_settings.HEADROOM.model_copy(update={"auth": "noauth"})

    def test_streams_the_file(self) -> None:
        grow_month()
        answer: Any = Client().get(f"{URL}?month=2026-11&span=hour")
        assert (answer.status_code, answer["Content-Type"]) == (200, "text/csv")
        assert answer.streaming
        text = b"".join(answer.streaming_content).decode()
        assert text == "".join(focus_file(month_start("2026-11"), ChargeSpan.HOUR))

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ("", "month"),
            ("month=2026-00", "month"),
            ("month=2026-11&month=2026-10", "month"),
            ("month=2026-11&span=year", "span"),
            ("month=2026-11&when=now", "when"),
            ("month=%00", "month"),
        ],
    )
    def test_says_which_parameter_is_wrong(self, query: str, field: str) -> None:
        answer = Client().get(f"{URL}?{query}")
        assert (answer.status_code, answer.json()["field"]) == (400, field)

    def test_needs_rights(self, settings: Any) -> None:
        settings.HEADROOM = django_settings.HEADROOM.model_copy(update={"auth": "token"})
        assert Client().get(f"{URL}?month=2026-11").status_code == 401


REQUIREMENTS = Path(__file__).parent.parent / "peers" / "requirements-focus.txt"
#: The validator asks for five columns by names that FOCUS 1.0 had before it was released.
OLDER_NAMES = {
    "InvoiceIssuer": "InvoiceIssuerName",
    "Provider": "ProviderName",
    "Publisher": "PublisherName",
    "ResourceID": "ResourceId",
    "ChargeType": "ChargeCategory",
}
VALIDATE = """
import os, sys, warnings
warnings.simplefilter("ignore")
import focus_validator
from focus_validator.validator import Validator
os.chdir(os.path.dirname(os.path.dirname(focus_validator.__file__)))  # finds its currencies there
Validator(data_filename=sys.argv[1], override_filename=None, rules_version="1.0",
          output_type="console", output_destination=None).validate()
"""


@pytest.fixture(scope="module")
def validator() -> Path:
    """The interpreter of an environment with the public validator in it."""
    home = this_checkout().local / "peers" / "focus"
    text = lock_of(REQUIREMENTS).read_bytes() + str(sys.version_info[:2]).encode()
    stamp, wanted = home / "headroom-stamp", hashlib.sha256(text).hexdigest()
    home.parent.mkdir(parents=True, exist_ok=True)
    with locked(home.parent / "focus.lock"):
        if not stamp.is_file() or stamp.read_text() != wanted:
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)  # noqa: S603 - ours
            python = home / "bin" / "python"
            command = [*pip(python), "--quiet", *install_arguments(REQUIREMENTS)]
            subprocess.run(command, check=True)  # noqa: S603 - our lock file
            stamp.write_text(wanted)
    return home / "bin" / "python"


def validated(python: Path, file: Path) -> str:
    """Return what the validator says of a file; no rule of it is left out."""
    rows = rows_of(file.read_text())
    known = file.with_suffix(".known.csv")
    with known.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, [*COLUMNS, *OLDER_NAMES])
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, **{old: row[name] for old, name in OLDER_NAMES.items()}})
    environ = {"PATH": os.environ["PATH"], "COLUMNS": "200"}
    command = [str(python), "-c", VALIDATE, str(known)]
    done = subprocess.run(  # noqa: S603 - ours
        command, env=environ, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_the_public_validator_accepts_a_month_and_refuses_a_broken_one(
    validator: Path, tmp_path: Path
) -> None:
    grow_month()
    file = tmp_path / "month.csv"
    call_command("export_focus", month="2026-11", output=file, stderr=StringIO())
    told = validated(validator, file)
    assert "Validation succeeded" in told, told[-3000:]
    file.write_text(file.read_text().replace("EUR", "EURO"))
    told = validated(validator, file)
    assert "Validation failed" in told
    assert "BillingCurrency" in told


def test_no_run_no_hours() -> None:
    assert not UsageCheck.objects.exists()
    assert keep_usage_hours().hours == 0
