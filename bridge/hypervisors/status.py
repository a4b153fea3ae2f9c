"""What ``/statusz`` tells of Hypervisor objects."""

from __future__ import annotations

from django.conf import settings

from bridge.hypervisors.writing import KIND
from hosts.models import FeedPass
from hosts.region.described import is_taken_from_objects
from journal.clock import database_now
from journal.health import ReadinessCheck

NAME = "hypervisors"


def check_hypervisors() -> ReadinessCheck:
    """Tell how old is what we know of them, and whether a list was not believed."""
    if not is_taken_from_objects():
        return ReadinessCheck(name=NAME, is_ok=True, detail="off")
    row = FeedPass.objects.filter(kind=KIND).first()
    if row is None or row.listed_at is None:
        return ReadinessCheck(name=NAME, is_ok=False, detail="never read")
    if row.refusal:
        return ReadinessCheck(name=NAME, is_ok=False, detail=row.refusal)
    seconds = int((database_now() - row.listed_at).total_seconds())
    is_late = seconds > 2 * settings.HEADROOM.hypervisors.silence_seconds
    return ReadinessCheck(
        name=NAME, is_ok=not is_late, detail=f"{seconds} s old" if is_late else "up to date"
    )
