"""Checks of the bridge: is anything in the way of fields that Headroom writes in objects?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from django.conf import settings

from bridge.models import OwnedFieldConflict
from core.doctor.findings import Check, Finding, broken, fine
from core.text import plural

EXAMPLES: Final = 3


def bridge_checks() -> Mapping[str, Check]:
    """Return them by name."""
    return {"hypervisor fields": check_owned_fields}


def check_owned_fields() -> Iterator[Finding]:
    """Tell which fields of Hypervisor objects others own."""
    written = settings.HEADROOM.hypervisors.write_back
    found = list(OwnedFieldConflict.objects.all()) if written else []
    for one in found[:EXAMPLES]:
        yield broken(
            f"{plural(len(found), 'field')} not written, such as {one.field} of {one.host_name}: "
            f"{one.problem}",
            "docs/hypervisors.md, Fields that Headroom writes",
        )
    if not found:
        yield fine("fields are as they should be" if written else "no field is written")
