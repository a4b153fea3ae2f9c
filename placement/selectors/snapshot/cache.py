"""The snapshot that a process keeps, and the step from one state of the database to the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from django.db import DatabaseError, connection

from core.changes import one_snapshot
from core.conf import headroom
from core.sessions import current_session
from core.standby import follow_there
from journal.collector import give_memory_back, paused_collector
from journal.history import Moment, check_is_followed, is_continued, read_moment
from journal.self_check import SelfCheck
from journal.standby.asking import PATIENCE_SECONDS
from placement.domain.snapshot import Snapshot
from placement.domain.snapshot_build import build_snapshot
from placement.domain.snapshot_differences import snapshot_differences
from placement.domain.snapshot_update import replace_trees, with_held, with_usage
from placement.metrics import RELOAD_SECONDS, observe_check, observe_refresh
from placement.selectors.allocated import NAME
from placement.selectors.held import CORES, MEMORY
from placement.selectors.snapshot.changes import Changes, read_changes
from placement.selectors.snapshot.reading import NamesByID, read_names, read_trees

log = structlog.get_logger(__name__)

#: Rows of the change log are kept for an hour; a snapshot that was not looked at for so long is
#: read anew.
LOG_TRUSTED_SECONDS: Final = 1800.0
#: Where more than this share of the trees changed, reading everything is faster.
MOST_OF_THE_TREES: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class State:
    """A snapshot of the providers and the moment of the database that it was read in.

    Attributes:
        moment: Of the read; later changes are those that its snapshot does not show.
        names: Of traits and classes.
        read_at: Monotonic time of the read, seconds.
        with_copies: Whether copies of another Placement are among the providers.
    """

    snapshot: Snapshot
    moment: Moment
    names: NamesByID
    read_at: float
    with_copies: bool = False


def load_state(*, with_copies: bool = False) -> State:
    """Read everything, in one snapshot of the database where that is ours to choose."""
    with RELOAD_SECONDS.time(), paused_collector(), one_snapshot():
        read_at = time.monotonic()
        moment = read_moment()
        names = read_names()
        snapshot = _read_snapshot(names, with_copies=with_copies)
    give_memory_back()
    return State(
        snapshot=snapshot,
        moment=moment,
        names=names,
        read_at=read_at,
        with_copies=with_copies,
    )


def _read_snapshot(names: NamesByID, *, with_copies: bool) -> Snapshot:
    rows = read_trees(names, with_held=is_held_read(), with_copies=with_copies)
    return build_snapshot(rows.providers, rows.inventories, names.as_names())


def load_beside(*, with_copies: bool = False) -> State:
    """Read everything from a standby, and from the primary what changed since; else all from there.

    A region's providers take the server seconds, and every process reads them.
    """
    load = partial(load_state, with_copies=with_copies)
    if current_session().wrapper.in_atomic_block:
        return load()
    state = follow_there(
        load,
        reader="providers",
        within_seconds=PATIENCE_SECONDS,
        patience_seconds=PATIENCE_SECONDS,
    )
    if state is None:
        return load()
    read_at = time.monotonic()
    return advance(state, _read_wanted_changes(state.moment.snapshot), read_at=read_at)


def advance(
    state: State, changes: Changes, *, read_at: float, load: Callable[..., State] = load_state
) -> State:
    """Return the state after some changes; costs the changes and not the region.

    Everything is read anew by ``load`` if too much has changed, or the database is not the one that
    the state was read from.
    """
    if not _is_continued(state, changes):
        return load(with_copies=state.with_copies)
    if changes.is_usage_only:
        snapshot = _with_usage(state, changes)
        if snapshot is not None:
            snapshot = _with_held(snapshot, changes)
            return State(  # quicker than dataclasses.replace
                snapshot=snapshot,
                moment=changes.moment,
                names=state.names,
                read_at=read_at,
                with_copies=state.with_copies,
            )
    with one_snapshot():
        read_at = time.monotonic()
        changes = read_changes(state.moment.snapshot, with_held=is_held_read())
        names = read_names() if changes.has_new_names else state.names
        is_much = changes.count > MOST_OF_THE_TREES * max(1, state.snapshot.tree_count)
        is_anew = is_much or not _is_continued(state, changes) or _has_renamed(state.names, names)
        root_ids = [] if is_anew else sorted(changes.trees | changes.usage_trees)
        rows = read_trees(names, root_ids, with_held=is_held_read(), with_copies=state.with_copies)
    if is_anew:
        return load(with_copies=state.with_copies)
    part = build_snapshot(
        rows.providers,
        rows.inventories,
        names.as_names(),
        trait_bit=state.snapshot.trait_bit,
        aggregate_bit=state.snapshot.aggregate_bit,
    )
    return State(
        snapshot=_with_held(replace_trees(state.snapshot, root_ids, part), changes),
        moment=changes.moment,
        names=names,
        read_at=read_at,
        with_copies=state.with_copies,
    )


def _is_continued(state: State, changes: Changes) -> bool:
    return is_continued(state.moment, changes.moment, reader="placement")


def _has_renamed(before: NamesByID, after: NamesByID) -> bool:
    """Return whether a class bears another name, which any tree may have (before 1.7)."""
    return any(after.classes.get(key, name) != name for key, name in before.classes.items())


def _with_usage(state: State, changes: Changes) -> Snapshot | None:
    if not changes.usage_trees:
        return state.snapshot
    keys, class_ids, used = zip(*changes.usage, strict=True) if changes.usage else ((), (), ())
    name_of = state.names.classes
    try:
        names = [name_of[one] for one in class_ids]
    except KeyError:  # one that came since
        return None
    return with_usage(state.snapshot, keys, names, used, changes.versions)


def _with_held(snapshot: Snapshot, changes: Changes) -> Snapshot:
    for name in (MEMORY, CORES) if changes.held else ():
        amounts = [held.of_class(name) for held in changes.held.values()]
        snapshot = with_held(snapshot, list(changes.held), name, amounts)
    return snapshot


def is_held_read() -> bool:
    """Return whether candidates depend on what is held on hosts.

    Where claims follow the ledger they are refused what is held for others.
    """
    wanted = headroom()
    return bool(wanted.placement.hide_fully_held or wanted.allocation_source == NAME)


def _read_wanted_changes(since: str) -> Changes:
    return read_changes(since, with_held=is_held_read())


class SnapshotCache:
    """Keeps one snapshot and brings it forward for each request; safe for threads.

    Requests that come together share a refresh, but none joins one that began before it came: an
    answer is never older than the begin of its request. They share its failure as well: a database
    that makes each wait would let the last of them wait for all.

    Args:
        changes_since: Reads what changed since a snapshot of the database.
        with_copies: Whether copies of another Placement are among the providers.
    """

    def __init__(
        self,
        changes_since: Callable[[str], Changes] = _read_wanted_changes,
        *,
        with_copies: bool = False,
    ) -> None:
        self._changes_since = changes_since
        self._with_copies = with_copies
        self._lock = threading.Lock()
        self._state: State | None = None
        self._begun = 0
        self._done = 0
        self._failed = 0
        self._failure: DatabaseError | None = None
        self._has_shown_changes = True
        self._check = SelfCheck(
            "placement-snapshot-check",
            self.verify,
            every_seconds=lambda: headroom().placement.snapshot_check_seconds,
        )

    def current(self) -> Snapshot:
        """Return the providers as of now, including the caller's own uncommitted writes.

        Inside a transaction the caller gets a copy of its own, so that a rollback leaves nothing
        behind in the shared one.

        Raises:
            NotFollowed: a standby answers this thread; others who ask now hear nothing of it.
        """
        check_is_followed()
        if current_session().wrapper.in_atomic_block:
            return load_state(with_copies=self._with_copies).snapshot
        snapshot = self._newest()
        self._check.start_if_due()
        return snapshot

    def _newest(self) -> Snapshot:
        came_at = self._begun
        with self._lock:
            if self._done > came_at and self._state is not None:
                return self._state.snapshot
            if self._failed > came_at and self._failure is not None:
                raise type(self._failure)(*self._failure.args) from self._failure.__cause__
            self._begun += 1
            number = self._begun
            try:
                self._state = self._refreshed()
            except DatabaseError as error:
                self._failed, self._failure = number, error.with_traceback(None)
                raise
            self._done, self._failure = number, None
            return self._state.snapshot

    def verify(self) -> Mapping[str, int]:
        """Compare the snapshot with one built anew, and forget it if they differ.

        Both are read in one snapshot of the database, so concurrent writers make no difference.

        Returns:
            What differed -> how many providers, inventories or names; empty when nothing did.
        """
        known = self._state
        if known is None:
            return {}
        compare = partial(self._compared, known)
        differences = follow_there(compare, reader="providers", within_seconds=PATIENCE_SECONDS)
        if differences is None:
            differences = compare()
        observe_check(differences)
        if differences:
            log.error("placement_snapshot_differs", counts=differences)
            self.reset()
        self._check.done()
        return differences

    def _compared(self, known: State) -> Mapping[str, int]:
        """Return how a state, brought forward, differs from one that is built anew."""
        with one_snapshot():
            rebuilt = load_state(with_copies=self._with_copies)
            changes = self._changes_since(known.moment.snapshot)
            current = advance(known, changes, read_at=known.read_at)
        return snapshot_differences(current.snapshot, rebuilt.snapshot)

    def reset(self) -> None:
        """Forget the snapshot; the next use reads everything."""
        with self._lock:
            self._state = None

    def _refreshed(self) -> State:
        known = self._state
        read_at = time.monotonic()
        if known is None or read_at - known.read_at > LOG_TRUSTED_SECONDS:
            state = load_beside(with_copies=self._with_copies)
            self._check.done()
            observe_refresh(providers=len(state.snapshot), trees=state.snapshot.tree_count)
            return state
        state, changes = self._searched_beside(known) or self._brought_forward(known)
        if state.snapshot is not known.snapshot or self._has_shown_changes:
            observe_refresh(providers=len(state.snapshot), trees=changes.count)
            self._has_shown_changes = changes.count > 0
        return state

    def _brought_forward(self, known: State) -> tuple[State, Changes]:
        read_at = time.monotonic()
        changes = self._changes_since(known.moment.snapshot)
        return advance(known, changes, read_at=read_at, load=load_beside), changes

    def _searched_beside(self, known: State) -> tuple[State, Changes] | None:
        """Bring a state forward on a standby, where that is wanted and one has what it takes."""
        replicas = headroom().replicas
        if not replicas.searches:
            return None
        return follow_there(
            partial(self._brought_forward, known),
            reader="candidates",
            within_seconds=replicas.replay_wait_milliseconds / 1000,
        )


_cache = SnapshotCache()
_cache_with_copies = SnapshotCache(with_copies=True)


def current_snapshot() -> Snapshot:
    """Return this process's snapshot, brought up to date; one read anew where that is set."""
    if headroom().placement.snapshot == "off":
        return load_state().snapshot
    return _cache.current()


def snapshot_with_copies() -> Snapshot:
    """Return the same with the copies of another Placement among the providers."""
    if headroom().placement.snapshot == "off":
        return load_state(with_copies=True).snapshot
    return _cache_with_copies.current()


def kept_snapshot() -> Snapshot | None:
    """Return this process's snapshot, brought up to date; None where none is kept.

    A transaction sees its own uncommitted writes, which nothing shared can show.
    """
    if headroom().placement.snapshot == "off" or connection.in_atomic_block:
        return None
    return _cache.current()
