"""Fields of ours in Hypervisor objects: compared all the time, written where they differ.

Nothing of it is remembered but what could not be written: whoever leads next compares anew. What
we wrote comes back through the watch as it should be, and so is not written again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import structlog
from django.conf import settings
from django.db import Error, close_old_connections, connections, transaction

from bridge.domain.owned_fields import (
    Amounts,
    Field,
    Patch,
    Requested,
    Stated,
    amounts_patch,
    cells_patch,
    groups_patch,
    overcommit_patch,
)
from bridge.hypervisors.kubernetes import object_path
from bridge.kube.client import ClusterClient, Json, ObjectChanged, ObjectRefused
from bridge.kube.login import ClusterUnavailable
from bridge.models import OwnedFieldConflict
from capacity.models import HostCapacity
from hosts.domain.overcommit import OvercommitRule
from hosts.services.overcommit_rules import stored_rules
from journal.errors import HeadroomError
from journal.leases import check_leases
from journal.readings import counter
from placement.selectors.cells import usage_of_cells
from placement.selectors.requested import requested_groups

log = structlog.get_logger(__name__)

Place: TypeAlias = tuple[str, Field]

#: Writes of a step; the next one follows at once.
BATCH: Final = 200
FIRST_PAUSE_SECONDS: Final = 1.0
FORBIDDEN: Final = 403
WRITTEN, CONFLICT, REFUSED, CHANGED = "written", "conflict", "refused", "changed"
UNANSWERED: Final = "unanswered"
WRITES_TOTAL: Final = counter(
    "hypervisor_field_writes_total",
    "Attempts to write a field of ours in a Hypervisor object, by what became of it.",
    field=tuple(Field),
    outcome=(WRITTEN, CONFLICT, REFUSED, CHANGED, UNANSWERED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What became of a field.

    Attributes:
        version: Of the object after it.
        problem: Why it is not as it should be; empty if it is, or if the object changed meanwhile.
    """

    outcome: str
    version: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The last attempt at a field.

    Attributes:
        versions: Of the object before and after it: as long as it is one of them, nobody has
            changed it since.
        rests_until: Monotonic seconds before which it is left alone.
    """

    wanted: Json
    versions: frozenset[str]
    rests_until: float


class WriteBack:
    """Writes in the objects of one cluster, as long as the lease is held."""

    def __init__(
        self,
        open_client: Callable[[], ClusterClient],
        stated: Callable[[], Mapping[str, Stated] | None],
    ) -> None:
        """Remember where to look.

        Args:
            open_client: Called anew after each failure.
            stated: Returns host name -> what its object says now; None while nobody knows.
        """
        self._open_door = open_client
        self._client: ClusterClient | None = None
        self._stated = stated
        self._tried: dict[Place, Tried] = {}
        self._problems: dict[Place, str] | None = None
        self._until = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> WriteBack:
        """Begin, with the leases of the caller."""
        if not settings.HEADROOM.hypervisors.write_back:
            _forget_problems()
            return self
        run = copy_context().run
        self._thread = threading.Thread(
            target=run, args=(self.run,), name="hypervisor-fields", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End after the requests that are under way."""
        self._until.set()
        if self._thread is not None:
            self._thread.join()

    def run(self) -> None:
        """Compare and write until told to end; what fails is tried again."""
        chosen = settings.HEADROOM.hypervisors
        pause = FIRST_PAUSE_SECONDS
        try:
            while not self._until.is_set():
                try:
                    wait = 0.0 if self.step() >= BATCH else chosen.write_back_interval_seconds
                    pause = FIRST_PAUSE_SECONDS
                except (HeadroomError, Error) as error:
                    log.warning("hypervisor_fields_not_written", error=str(error))
                    self._close_door()
                    close_old_connections()
                    self._problems = None
                    wait, pause = pause, min(2 * pause, chosen.longest_pause_seconds)
                self._until.wait(wait)
        finally:
            self._close_door()
            connections.close_all()

    def step(self) -> int:
        """Compare all objects, write what differs in some; return in how many fields.

        Raises:
            ClusterUnavailable: The API server does not answer.
            LeaseLost: Another process is the watcher now.
        """
        stated = self._stated()
        if stated is None:
            return 0
        wrong = dict(_differing(stated))
        due = [place for place in wrong if self._is_due(place, wrong[place], stated[place[0]])]
        due = due[:BATCH]
        with transaction.atomic(durable=True):
            check_leases()
        attempts = self._write([(stated[place[0]], place, wrong[place]) for place in due])
        now = time.monotonic()
        for place, attempt in attempts.items():
            rests = settings.HEADROOM.hypervisors.conflict_pause_seconds if attempt.problem else 0
            self._tried[place] = Tried(
                wanted=wrong[place].wanted,
                versions=frozenset({stated[place[0]].version, attempt.version} - {""})
                if attempt.outcome == WRITTEN
                else frozenset(),
                rests_until=now + rests,
            )
        self._tried = {place: tried for place, tried in self._tried.items() if place in wrong}
        self._note(wrong, attempts)
        return len(attempts)

    def _is_due(self, place: Place, patch: Patch, stated: Stated) -> bool:
        tried = self._tried.get(place)
        if tried is None or tried.wanted != patch.wanted:
            return True
        return stated.version not in tried.versions and time.monotonic() >= tried.rests_until

    def _write(self, batch: list[tuple[Stated, Place, Patch]]) -> dict[Place, Attempt]:
        if not batch:
            return {}
        if self._client is None:
            self._client = self._open_door()
        client = self._client
        with ThreadPoolExecutor(settings.HEADROOM.hypervisors.write_threads) as threads:
            tried = list(
                threads.map(lambda one: _attempt(client, one[1][0], one[0], one[2]), batch)
            )
        found = {place: attempt for (_, place, _), attempt in zip(batch, tried, strict=True)}
        for (_, field), attempt in found.items():
            WRITES_TOTAL.labels(field, attempt.outcome).inc()
        unanswered = [one.problem for one in tried if one.outcome == UNANSWERED]
        if unanswered:
            raise ClusterUnavailable(unanswered[0])
        return found

    def _note(self, wrong: Mapping[Place, Patch], attempts: Mapping[Place, Attempt]) -> None:
        """Keep the problems that are, forget those that were."""
        if self._problems is None:
            kept = OwnedFieldConflict.objects.filter(field__in=list(Field))
            self._problems = {
                (name, Field(field)): problem
                for name, field, problem in kept.values_list("host_name", "field", "problem")
            }
        problems = {place: text for place, text in self._problems.items() if place in wrong}
        for place, attempt in attempts.items():
            problems.pop(place, None)
            if attempt.problem:
                problems[place] = attempt.problem
        if problems == self._problems:
            return
        with transaction.atomic(durable=True):
            check_leases()
            for name, field in self._problems.keys() - problems.keys():
                OwnedFieldConflict.objects.filter(host_name=name, field=field).delete()
            for place, problem in problems.items():
                if problem != self._problems.get(place):
                    _keep_problem(place, problem)
        self._problems = problems

    def _close_door(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None


def _differing(stated: Mapping[str, Stated]) -> Iterator[tuple[Place, Patch]]:
    """Yield each field that does not say what it should."""
    chosen = settings.HEADROOM.hypervisors
    rules = _rules() if Field.OVERCOMMIT in chosen.write_back else ()
    taken = _taken() if Field.ALLOCATION in chosen.write_back else {}
    requested = _requested() if Field.GROUPS in chosen.write_back else {}
    is_by_cell = {Field.ALLOCATION, Field.CELLS} <= set(chosen.write_back)
    taken_of_cells = _taken_of_cells() if is_by_cell else {}
    compare: dict[Field, Callable[[str, Stated], Patch | None]] = {
        Field.OVERCOMMIT: lambda _, said: overcommit_patch(said, rules),
        Field.GROUPS: lambda name, said: groups_patch(said, requested.get(name)),
        Field.EFFECTIVE_CAPACITY: lambda _, said: amounts_patch(
            Field.EFFECTIVE_CAPACITY, said.effective, said.promised
        ),
        Field.ALLOCATION: lambda name, said: amounts_patch(
            Field.ALLOCATION, said.allocation, taken.get(name)
        ),
        Field.CELLS: lambda name, said: cells_patch(said, taken_of_cells.get(name, {})),
    }
    for name in sorted(stated):
        for field in map(Field, chosen.write_back):
            patch = compare[field](name, stated[name])
            if patch is not None:
                yield (name, field), patch


def _rules() -> tuple[OvercommitRule, ...]:
    """Return the rules of the settings, else those that operators edit."""
    chosen = settings.HEADROOM.hypervisors.overcommit_rules
    if not chosen:
        return stored_rules()
    return tuple(
        OvercommitRule(
            ratios={str(name): ratio for name, ratio in rule.overcommit.items()},
            trait=rule.has_trait or rule.hasnt_trait,
            is_present=bool(rule.has_trait),
        )
        for rule in chosen
    )


def _attempt(client: ClusterClient, name: str, stated: Stated, patch: Patch) -> Attempt:
    try:
        return _apply(client, name, stated, patch)
    except ClusterUnavailable as error:
        if error.facts.get("answered") == FORBIDDEN:
            return _told(name, patch.field, REFUSED, error.message)
        return Attempt(outcome=UNANSWERED, problem=error.message)


def _apply(client: ClusterClient, name: str, stated: Stated, patch: Patch) -> Attempt:
    field = patch.field
    has_force = settings.HEADROOM.hypervisors.conflicts == "force"
    try:
        answer, _ = client.apply(
            object_path(name, "status" if field.is_status else ""),
            _manifest(name, stated, patch),
            manager=field.manager,
            force=has_force,
        )
        if patch.foreign and has_force:
            answer = _without(client, name, patch)
    except ObjectChanged as error:
        if error.facts.get("owned"):
            return _told(name, field, CONFLICT, error.message)
        return Attempt(outcome=CHANGED)
    except ObjectRefused as error:
        found = client.get(object_path(name)) or {}
        if found.get("metadata", {}).get("uid") != stated.uid:
            return Attempt(outcome=CHANGED)
        return _told(name, field, REFUSED, error.message)
    section = answer.get("status" if field.is_status else "spec") or {}
    if problem := _difference(section.get(field.key), patch):
        return _told(name, field, CONFLICT, problem)
    log.info("hypervisor_field_written", host=name, field=field.value)
    return Attempt(outcome=WRITTEN, version=answer["metadata"]["resourceVersion"])


def _told(name: str, field: Field, outcome: str, problem: str) -> Attempt:
    log.error("hypervisor_field_conflict", host=name, field=field.value, problem=problem)
    return Attempt(outcome=outcome, problem=problem)


def _manifest(name: str, stated: Stated, patch: Patch) -> Json:
    """Return what is applied: to this very object, never to one of its name made anew.

    Groups and cells are made of what others wrote there, so of one version.
    """
    chosen = settings.HEADROOM.hypervisors
    version = {"resourceVersion": stated.version} if patch.field.is_of_others else {}
    return {
        "apiVersion": f"{chosen.group}/{chosen.version}",
        "kind": "Hypervisor",
        "metadata": {"name": name, "uid": stated.uid, **version},
        "status" if patch.field.is_status else "spec": {patch.field.key: patch.wanted},
    }


def _without(client: ClusterClient, name: str, patch: Patch) -> Json:
    """Remove what others wrote in a map of ours."""
    gone = {"spec": {patch.field.key: dict.fromkeys(patch.foreign)}}
    return client.merge(object_path(name), gone, manager=patch.field.manager)


def _difference(found: Any, patch: Patch) -> str:  # Any: what the server keeps
    """Return what is wrong with a field after it was written; empty if nothing is."""
    if isinstance(patch.wanted, dict):
        has = found if isinstance(found, dict) else {}
        foreign = sorted(has.keys() & set(patch.foreign))
        if foreign:
            return f"others wrote {', '.join(foreign)} there"
        is_kept = all(has.get(key) == wanted for key, wanted in patch.wanted.items())
    else:
        is_kept = found == patch.wanted
    return "" if is_kept else f"the API server keeps {found!r} instead of {patch.wanted!r}"


def _taken() -> dict[str, Amounts]:
    rows = HostCapacity.objects.filter(host__is_self_described=True).values_list(
        "host__name", "allocated_vcpus", "allocated_memory_bytes"
    )
    return {name: Amounts(vcpus=vcpus, memory_bytes=memory) for name, vcpus, memory in rows}


def _taken_of_cells() -> dict[str, dict[int, Amounts]]:
    return {
        host: {
            number: Amounts(vcpus=used.vcpus, memory_bytes=used.memory_bytes)
            for number, used in cells.items()
        }
        for host, cells in usage_of_cells().items()
    }


def _requested() -> dict[str, Requested]:
    return {
        name: Requested(traits=None if traits is None else frozenset(traits), aggregates=aggregates)
        for name, traits, aggregates in requested_groups()
    }


def _keep_problem(place: Place, problem: str) -> None:
    name, field = place
    OwnedFieldConflict.objects.update_or_create(
        host_name=name, field=field, defaults={"problem": problem}
    )


def _forget_problems() -> None:
    with transaction.atomic(durable=True):
        check_leases()
        OwnedFieldConflict.objects.all().delete()
