from __future__ import annotations

import io
from typing import Any

import orjson
import pytest
from django.core.management import CommandError, call_command

from capacity.models import Reservation
from tests.commitments.change_requests import change, decide_ram
from tests.factories import make_group, make_hosts

pytestmark = pytest.mark.django_db(transaction=True)

UUID = "aaaaaaaa-0000"


def shown(*arguments: str) -> str:
    out = io.StringIO()
    call_command("show_commitment", *arguments, stdout=out)
    return out.getvalue()


def as_json(uuid: str) -> dict[str, Any]:
    record: dict[str, Any] = orjson.loads(shown(uuid, "--json"))
    return record


def make_region() -> None:
    make_group("hana_1", flavors=[("small", 1024, 1)])
    make_hosts(2, memory_gib=4, vcpus=4)


def test_accepted_commitment_shows_its_slots_with_their_hosts_and_why() -> None:
    make_region()
    assert not decide_ram("alpha", change(UUID, 3)).rejection_reason
    text = shown(UUID)
    assert f"commitment {UUID}: 3 GiB of hana_1 in az-a for project alpha" in text
    assert "state confirmed, accepted: 3 GiB of hana_1 in az-a is promised and held." in text
    assert "3 slots, 3 placed" in text
    hosts = Reservation.objects.order_by("slot_index").values_list("target_host__name", flat=True)
    for index, host in enumerate(hosts):
        assert f"  slot {index}: small, 1 GiB, 1 vCPUs, on {host}\n    best of " in text
    assert "1 event" in text
    assert "commitment accepted by limes (committed-resource-test-request-1)" in text


def test_waiting_commitment_shows_which_slots_lack_a_host_and_what_removed_the_hosts() -> None:
    make_region()
    decide_ram("alpha", change(UUID, 9, "pending"))
    text = shown(UUID)
    assert "1 slot, 0 placed" in text
    assert "not placed: asked 1 GiB and 1 vCPUs on one host" in text
    assert "The next try" in text


def test_json_has_amounts_in_bytes_and_everything_that_is_printed() -> None:
    make_region()
    decide_ram("alpha", change(UUID, 2))
    record = as_json(UUID)
    assert record["commitment_uuid"] == UUID
    assert record["requested_amount"] == record["accepted_amount"] == 2 << 30
    assert [slot["memory_bytes"] for slot in record["slots"]] == [1 << 30, 1 << 30]
    assert all(slot["host"] and slot["is_ready"] for slot in record["slots"])
    assert [event["action"] for event in record["events"]] == ["commitment_accepted"]


def test_unknown_commitment_is_an_error_and_a_deleted_one_says_who_deleted_it() -> None:
    make_region()
    with pytest.raises(CommandError, match=f"^no commitment {UUID}$"):
        shown(UUID)
    decide_ram("alpha", change(UUID, 2))
    decide_ram("alpha", change(UUID, 2, None, old="confirmed"))
    with pytest.raises(CommandError, match=r"commitment_deleted at .* by limes") as failed:
        shown(UUID)
    assert failed.value.returncode == 1
