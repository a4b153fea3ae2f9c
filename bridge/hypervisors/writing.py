"""Hypervisor objects on their way into hosts: through the writer of every list (ADR 0030)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import uuid4

import orjson
import structlog
from django.conf import settings

from bridge.domain.owned_fields import Field
from bridge.hypervisors.reading import name_of, object_node, read_hypervisor
from hosts.feed.state import begin_pass, fail_pass, finish_pass, still_known
from hosts.region.described import (
    DESCRIBED,
    HYPERVISOR_LISTS,
    DescribedHost,
    DescribedList,
    described_sink,
)
from hosts.region.node import RegionFileError
from hosts.region.run import ImportOptions, ImportReport, ImportRun, Live
from hosts.services.region_import import Sinks, alone, take_in
from journal.actors import Actor
from journal.clock import database_now

log = structlog.get_logger(__name__)

KIND: Final = HYPERVISOR_LISTS
MALFORMED: Final = "malformed"
#: As JSON has it; no column can hold one.
NUL: Final = b"\\u0000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """An object that cannot be understood: its host stays as it is.

    Attributes:
        problem: The field and what is wrong there.
    """

    problem: str


Told = DescribedHost | Malformed


def told_by(body: object, number: int = 0) -> tuple[str, Told]:
    """Return the name of an object, empty if it has none, and what it says."""
    node = object_node(body, number)
    name = name_of(node.fields)
    try:
        if NUL in orjson.dumps(body):
            raise node.error("", "contains a NUL character")
        is_ours = Field.EFFECTIVE_CAPACITY in settings.HEADROOM.hypervisors.write_back
        return name, read_hypervisor(node, is_effective_ours=is_ours)
    except RegionFileError as error:
        log.warning("hypervisor_malformed", host=name, error=error.message)
        return name, Malformed(problem=error.message)


def write_list(
    objects: Mapping[str, Told], *, actor: Actor, accepts_shrink: bool = False
) -> ImportReport:
    """Write what a whole list says, and remove hosts that it lacks unless it shrank too much.

    Args:
        objects: Host name -> what its object says, of all objects.
        accepts_shrink: Believe it however much it lacks (an operator said so).
    """
    began = begin_pass(KIND)
    options = ImportOptions(prune=True, accepts_shrink=accepts_shrink)
    return _write(objects, names=objects, before=None, options=options, actor=actor, began=began)


def write_changes(
    objects: Mapping[str, Told], *, names: Collection[str], gone: bool, before: int, actor: Actor
) -> ImportReport:
    """Write what changed.

    Args:
        objects: Host name -> what its object says now, of those that changed.
        names: All hosts that have an object now.
        gone: Whether one was deleted: then hosts without one are removed, by the rule of lists.
        before: How many had one when the last list was believed.
    """
    options = ImportOptions(prune=gone)
    began = begin_pass(KIND) if gone else database_now()
    return _write(objects, names=names, before=before, options=options, actor=actor, began=began)


def _write(
    objects: Mapping[str, Told],
    *,
    names: Collection[str],
    before: int | None,
    options: ImportOptions,
    actor: Actor,
    began: datetime,
) -> ImportReport:
    run = ImportRun(
        actor=actor,
        request_id=f"req-{uuid4()}",
        now=began,
        options=options,
        live=Live(began=began, find_gone=lambda _, absent: absent),
    )

    def read(run: ImportRun, _: Sinks) -> None:
        run.sections_seen.add(DESCRIBED)
        take = described_sink(run)
        listed: DescribedList = run.stash[DESCRIBED]
        listed.before = before
        for name in sorted(objects):
            said = objects[name]
            if isinstance(said, Malformed):
                run.report.skip(DESCRIBED, name, MALFORMED, said.problem)
            else:
                take(said)
        listed.names.update(names)

    try:
        take_in(run, read, sections=(), writing=alone(options))
    except BaseException as error:
        fail_pass(KIND, str(error) or type(error).__name__)
        raise
    if options.prune:
        finish_pass(KIND, began, run.report)
    else:
        still_known(KIND)
    return run.report
