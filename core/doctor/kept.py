"""Findings kept in rows, for the admin and for scrapes, which both must not run checks."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction

from core.doctor.findings import Finding
from journal.clock import database_now
from journal.models import CheckFinding


def keep_findings(findings: Iterable[Finding]) -> int:
    """Replace what was found before; return how many there are."""
    with transaction.atomic(durable=True):
        now = database_now()
        CheckFinding.objects.all().delete()
        rows = CheckFinding.objects.bulk_create(
            CheckFinding(
                check_name=one.check,
                severity=one.severity,
                found=one.found,
                todo=one.todo,
                looked_at=now,
            )
            for one in findings
        )
    return len(rows)
