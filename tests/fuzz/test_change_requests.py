"""Change requests that get deep: whatever is sent, the ledger holds and a no writes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.conftest import bounded, rolled_back
from tests.fuzz.region import CHANGE, Known, current_version
from tests.fuzz.strategies import change_bodies, encoded, raw_bodies, spoiled_bodies
from tests.fuzz.wsgi import Answer, call
from tests.ledger import assert_ledger_holds, fingerprint

pytestmark = pytest.mark.django_db(transaction=True)

ANSWERS = {200, 400, 409, 422}


def send_and_check(raw: bytes) -> Answer:
    """Send one request; a refusal must leave every row as it was."""
    before = fingerprint()
    answer = call("POST", CHANGE, raw)
    assert answer.status in ANSWERS, answer
    content_type = "application/json" if answer.status == 200 else "text/plain; charset=utf-8"
    assert answer.headers["content-type"] == content_type
    if answer.status != 200 or answer.json():
        assert fingerprint() == before, answer
    assert_ledger_holds()
    return answer


@pytest.mark.usefixtures("region")
def test_sequence_of_well_formed_requests_keeps_the_ledger_true() -> None:
    version = current_version()
    seen: dict[str, int] = {"accepted": 0, "rejected": 0, "refused": 0}

    @bounded(100)
    @given(bodies=st.lists(change_bodies(version), min_size=1, max_size=3))
    def send(bodies: list[dict[str, Any]]) -> None:
        with rolled_back():
            for body in bodies:
                before = fingerprint() if body["dryRun"] else ()
                answer = send_and_check(encoded(body))
                if answer.status != 200:
                    seen["refused"] += 1
                    continue
                seen["rejected" if answer.json() else "accepted"] += 1
                assert set(answer.json()) <= {"rejectionReason", "retryAt"}
                if body["dryRun"]:
                    assert fingerprint() == before

    send()
    assert min(seen.values()) > 20, seen  # otherwise nothing got deep


@pytest.mark.usefixtures("region")
def test_accepted_request_may_be_repeated() -> None:
    version = current_version()
    accepted = 0

    @bounded(40)
    @given(body=change_bodies(version))
    def send(body: dict[str, Any]) -> None:
        nonlocal accepted
        with rolled_back():
            first = send_and_check(encoded(body))
            if first.status == 200 and not first.json():
                accepted += 1
                again = send_and_check(encoded(body))
                assert (again.status, again.json()) == (200, {})

    send()
    assert accepted > 10


@pytest.mark.usefixtures("region")
def test_request_with_spoiled_fields_is_never_a_500() -> None:
    version = current_version()

    @bounded(80)
    @given(body=spoiled_bodies(version))
    def send(body: dict[str, Any]) -> None:
        with rolled_back():
            send_and_check(encoded(body))

    send()


@pytest.mark.usefixtures("region")
def test_damaged_bytes_are_never_a_500() -> None:
    version = current_version()

    @bounded(40)
    @given(raw=raw_bodies(version))
    def send(raw: bytes) -> None:
        with rolled_back():
            send_and_check(raw)

    send()


def test_region_holds_commitments_in_every_status(region: tuple[Known, ...]) -> None:
    assert {known.status for known in region} == {
        "planned",
        "pending",
        "guaranteed",
        "confirmed",
        "superseded",
        "expired",
    }
