"""Copies of the other Placement's traits and resource classes (spec placement, 8.6).

A later switch finds the names here, and lists of mode ``hybrid`` know them. Runs at once do no
harm: names are inserted where they are missing. One that is gone there goes here if it was copied
from there and nothing uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog

from core.conf import headroom
from core.copying import text_array
from core.prepared import fetch, run
from journal.errors import HeadroomError
from placement.database import in_transaction
from placement.domain.errors import PlacementError, UpstreamFailed
from placement.gateway.asking import OK, Asks, by_service_account, decoded
from placement.gateway.modes import Group, Mode
from placement.metrics import SYNC_RUNS
from placement.models import Change
from placement.models.changes import ALL_ROOTS
from placement.models.names import CUSTOM_PREFIX
from placement.services.locking import log_changes
from placement.services.names import delete_class, delete_trait

log = structlog.get_logger(__name__)

MOST_NAME: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class NameKind:
    """A kind of names.

    Attributes:
        path: Where the other side lists them.
        minor: Since which version as here.
        names: Takes them from the list's document.
        table: Ours.
        delete: Deletes one here, unless something uses it.
    """

    name: str
    group: Group
    path: str
    minor: int
    names: Callable[[Any], list[str]]  # Any: decoded JSON
    table: str
    delete: Callable[[str], None]


KINDS: Final = (
    NameKind(
        name="traits",
        group=Group.TRAITS,
        path="/traits",
        minor=6,
        names=lambda document: list(document["traits"]),
        table="placement_trait",
        delete=delete_trait,
    ),
    NameKind(
        name="resource_classes",
        group=Group.RESOURCE_CLASSES,
        path="/resource_classes",
        minor=7,
        names=lambda document: [one["name"] for one in document["resource_classes"]],
        table="placement_resource_class",
        delete=delete_class,
    ),
)

KNOWN = "SELECT name, is_copied FROM {table}"
INSERT = """
INSERT INTO {table} (name, is_copied) SELECT unnest(%s::text[]), true ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What one run did for a kind of names."""

    kind: str
    result: str
    inserted: int = 0
    deleted: int = 0


def is_followed() -> bool:
    """Return whether there is another Placement that we may ask, whose names count."""
    gateway = headroom().gateway
    return bool(gateway.upstream_url and (gateway.cloud or gateway.token))


def sync_names(ask: Asks | None = None) -> list[Synced]:
    """Copy the names of every kind that is not ours alone.

    Args:
        ask: Asks the other side; by the account of the settings when left out.

    Raises:
        NoAccountError: there is none.
    """
    modes = headroom().gateway.mode_of_group()
    ask = ask or by_service_account()
    done = [_synced(kind, ask) for kind in KINDS if modes[kind.group] is not Mode.LOCAL]
    for one in done:
        SYNC_RUNS.labels(kind=one.kind, result=one.result).inc()
    return done


def _synced(kind: NameKind, ask: Asks) -> Synced:
    try:
        names = _listed(kind, ask)
    except HeadroomError as error:  # what was copied before stays
        log.warning("gateway_names_not_copied", kind=kind.name, error=error.message)
        return Synced(kind=kind.name, result="failed")
    known: dict[str, bool] = dict(fetch(KNOWN.format(table=kind.table)))
    missing = sorted(names - known.keys())
    if missing:
        in_transaction(lambda: _insert(kind, missing))
    gone = [name for name, is_copied in known.items() if is_copied and name not in names]
    return Synced(
        kind=kind.name,
        result="ok",
        inserted=len(missing),
        deleted=sum(_deleted(kind, name) for name in gone),
    )


def _listed(
    kind: NameKind, ask: Asks
) -> Collection[str] | Any:  # Any: a set, whose operators are used
    answer = ask("GET", kind.path, kind.minor)
    if answer.status != OK:
        raise UpstreamFailed(f"GET {kind.path} answered {answer.status}")
    try:
        found = kind.names(decoded(answer))
    except (KeyError, TypeError) as error:
        raise UpstreamFailed(f"GET {kind.path} answered no list of names") from error
    names = {name for name in found if isinstance(name, str) and 0 < len(name) <= MOST_NAME}
    if not names:  # every Placement has standard names
        raise UpstreamFailed(f"GET {kind.path} answered no names")
    return names


def _insert(kind: NameKind, names: list[str]) -> None:
    if run(INSERT.format(table=kind.table), [text_array(names)]).rowcount:
        log_changes([ALL_ROOTS], Change.Kind.NAMES)


def _deleted(kind: NameKind, name: str) -> bool:
    if not name.startswith(CUSTOM_PREFIX):
        return False
    with suppress(PlacementError):  # it is used here, or gone already
        kind.delete(name)
        return True
    return False
