"""Checks of the Placement tables, as ``placement_audit`` makes them, with examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from core.conf import headroom
from core.doctor.findings import Check, Finding, broken, doubtful, fine
from core.text import plural
from placement.cutover.gate import MOST_PARTED_SECONDS
from placement.cutover.mirroring import backlog
from placement.cutover.planning import settings_in_the_way
from placement.cutover.state import HOLD_SECONDS, PARTED, read_state
from placement.domain.nova_options import client_problems
from placement.gateway.drift import is_hybrid
from placement.models import AllocationEvent, Consumer, HybridReport, Phase
from placement.services.audit import BREAKS_ANSWERS, AuditKind, find_problems

EXAMPLES: Final = 3
STATUS: Final = "./run manage placement_cutover status, docs/gateway.md"
DRIFT: Final = "./run manage placement_drift lists what does not fit, docs/gateway.md"
TIMES: Final = "docs/gateway.md, times of clients"
AUDIT: Final = "./run manage placement_audit lists them, --fix repairs"


def placement_checks() -> Mapping[str, Check]:
    """Return them by name."""
    return {"placement": check_tables, "cutover": check_cutover, "hybrid": check_hybrid}


def check_tables() -> Iterator[Finding]:
    """Tell how many findings of each kind there are."""
    found = find_problems()
    bare = sum(one.kind is AuditKind.MISSING for one in found)
    if bare and not _was_claimed():
        found = tuple(one for one in found if one.kind is not AuditKind.MISSING)
        yield fine(
            f"{plural(bare, 'VM')} without allocations, as nothing was ever claimed: this "
            "Placement is not in use; placement_import comes before Nova does"
        )
    for kind in AuditKind:
        of_kind = [one for one in found if one.kind is kind]
        if not of_kind:
            continue
        examples = "; ".join(
            f"{one.name or one.subject}: {one.detail}" for one in of_kind[:EXAMPLES]
        )
        told = f"{len(of_kind)} of kind {kind}: {examples}"
        yield broken(told, AUDIT) if kind in BREAKS_ANSWERS else doubtful(told, AUDIT)
    if not found:
        yield fine("nothing is wrong in its tables")


def _was_claimed() -> bool:
    """Return whether anybody holds something, or did: of what was lost one is still told."""
    return Consumer.objects.exists() or AllocationEvent.objects.exists()


def check_cutover() -> Iterator[Finding]:
    """Tell what endangers a move from another Placement, and how long clients have to wait."""
    gateway, phase = headroom().gateway, read_state().phase
    if not gateway.upstream_url:
        told = "no other Placement"
        yield (
            broken(f"{told}, and a cut-over is {phase}", STATUS)
            if phase is not Phase.OFF
            else fine(told)
        )
        return
    longest = gateway.timeout_seconds + (MOST_PARTED_SECONDS if phase in PARTED else HOLD_SECONDS)
    yield fine(
        f"a write takes {longest:g} s at the most: balancers, and the timeout in Nova's "
        "[placement] where it is set, have to be above that"
    )
    yield from _of_nova(gateway.nova_config, longest)
    if phase is Phase.OFF:
        return
    for problem in settings_in_the_way(phase):
        yield broken(f"a cut-over is {phase}: {problem}", "put the setting back, and restart")
    waiting, error = backlog(), read_state().last_error
    if waiting.refused:
        yield broken(f"{waiting.refused} mirrored writes are refused over there", STATUS)
    if error:
        yield doubtful(f"the last step of the cut-over stopped: {error}", STATUS)


def check_hybrid() -> Iterator[Finding]:
    """Tell what the newest look at both sides of mode ``hybrid`` found."""
    if not is_hybrid():
        yield fine("one side has everything")
        return
    report = HybridReport.objects.first()
    if report is None:
        yield doubtful("nobody has compared both sides yet", DRIFT)
        return
    counts = {kind: count for kind, count in report.counts.items() if count}
    if not counts:
        yield fine(f"both sides fitted together at {report.created_at:%Y-%m-%d %H:%M} UTC")
        return
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    yield doubtful(f"both sides do not fit together: {told}", DRIFT)


def _of_nova(file: Path | None, longest_seconds: float) -> Iterator[Finding]:
    """Tell what does not fit in the section of a nova.conf that is about Placement."""
    if file is None:
        return
    try:
        problems = client_problems(file.read_text("utf-8"), longest_seconds=longest_seconds)
    except (OSError, ValueError) as error:
        told = f"HEADROOM_GATEWAY__NOVA_CONFIG cannot be read: {error}"
        yield doubtful(told, "name a nova.conf that this process may read")
        return
    for problem in problems:
        yield doubtful(f"Nova's [placement]: {problem}", TIMES)
    if not problems:
        yield fine("Nova's [placement] fits: it waits long enough, and tries again")
