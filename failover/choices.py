"""Choices of the failover rows."""

from __future__ import annotations

from django.db import models


class SlotState(models.TextChoices):
    """Where a failover reservation is in its life (spec failover, 3.3, 17.5)."""

    ACTIVE = "active", "active"
    INVALID = "invalid", "invalid"
    CONSUMING = "consuming", "planned for an evacuation"
    RETIRED = "retired", "retired"


class RunOutcome(models.TextChoices):
    """How a run of the loop ended."""

    RUNNING = "running", "running"
    DONE = "done", "done"
    HALTED = "halted", "halted by the brake"
    SKIPPED = "skipped", "skipped: another run had the zone"
    FAILED = "failed", "failed"


class EventReason(models.TextChoices):
    """What happened to a failover reservation or to a VM's coverage (spec failover, 14.1)."""

    VALIDATION_PASSED = "ValidationPassed", "validation passed"
    VALIDATION_FAILED = "ValidationFailed", "validation failed"
    SLOT_CREATED = "SlotCreated", "created"
    SLOT_REUSED = "SlotReused", "joined"
    SLOT_RELEASED = "SlotReleased", "left or released"
    SAFEGUARD_KEPT = "SafeguardKept", "kept by the safeguard"
    COVERAGE_LOST = "CoverageLost", "coverage lost"
    COVERAGE_RESTORED = "CoverageRestored", "coverage restored"
    REMOVAL_HALTED = "RemovalHalted", "removal halted"


class Uncovered(models.TextChoices):
    """Why a VM has fewer failover reservations than it needs."""

    WAITING = "waiting", "not handled yet"
    NO_RESOURCES = "no_resources", "the VM has no memory or no vCPUs"
    NO_COMPATIBLE_HOST = "no_compatible_host", "no host may take the VM"
    NO_ELIGIBLE_HOST = "no_eligible_host", "no host left by the rules"
    NO_ROOM = "no_room", "no host has room"
    SCHEDULER_FAILED = "scheduler_failed", "the scheduler could not judge"
    SPOILED = "plan_spoiled", "others took the room meanwhile"


class Unsaved(models.TextChoices):
    """Why a VM has no failover reservation to go to when hosts fail (spec failover, 17.2)."""

    NO_SLOTS = "no_slots", "without any slot outside what fails"
    ALL_SLOT_HOSTS_FAILED = "all_slot_hosts_failed", "all hosts of their slots fail with them"
    OUTNUMBERED = "outnumbered", "others take their slots"
    NOT_FIT = "not_fit", "their slots are too small or on full hosts"


def reason_words(code: str) -> str:
    """Return a reason of drills and evacuations in words; one that is unknown as it is."""
    return str(dict(Unsaved.choices).get(code, code))
