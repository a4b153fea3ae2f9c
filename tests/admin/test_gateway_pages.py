"""What the gateway keeps for operators."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from placement.models import CheckOutcome, HybridReport, ShadowDifference, SplitWrite

pytestmark = pytest.mark.django_db


def test_differences_of_answers_and_open_writes_are_shown(admin_client: Client) -> None:
    difference = ShadowDifference.objects.create(
        request_id="req-1",
        query="resources=VCPU:1",
        minor=36,
        reason="other candidates",
        sample={"ours": [], "theirs": [{"the-provider": {"resources": {"VCPU": 1}}}]},
    )
    write = SplitWrite.objects.create(
        ends_at=timezone.now(),
        request_id="req-2",
        actor="nova",
        minor=36,
        before={"the-consumer": {"resources": {}}},
        after={},
        theirs={},
        body={},
        consumers=[],
        error="it answered 503",
    )
    report = HybridReport.objects.create(
        seconds=1.5,
        providers_there=1000,
        split_consumers=3,
        counts={"shadow": 2, "owner": 0},
        findings=[{"kind": "shadow", "subject": "the-shadow", "detail": "has the name of ours"}],
    )
    check = CheckOutcome.objects.create(
        test="usages", mode="", outcome="failed", detail="status 409 instead of 200"
    )
    for row, name, words in (
        (report, "hybridreport", ("2 shadow", "1.5 s", "the-shadow")),
        (check, "checkoutcome", ("status 409 instead of 200", "as configured", "failed")),
        (difference, "shadowdifference", ("other candidates", "1.36", "the-provider")),
        (write, "splitwrite", ("it answered 503", "nova", "the-consumer")),
    ):
        listed = admin_client.get(reverse(f"admin:placement_{name}_changelist"))
        page = admin_client.get(reverse(f"admin:placement_{name}_change", args=[row.pk]))
        assert (listed.status_code, page.status_code) == (200, 200)
        assert words[0] in listed.content.decode()
        for word in words:
            assert word in page.content.decode()
