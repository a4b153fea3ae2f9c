"""Names of the objects that the rows of a page mention, all of them read together.

Other systems' ids stand in columns, in reasons and in the facts of audit entries. A page collects
those of its rows. The first that is asked for reads the names of all: a statement for commitments,
one for reservations, one for all else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Protocol
from uuid import UUID

import orjson
from django.db.models import Model
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString

from capacity.models import Reservation
from commitments.models import Commitment
from console.commitments.presentation import amount_text, commitment_name
from console.links import find_link
from journal.statements import fetch_rows

UUIDS: Final = re.compile(
    r"\b(?:[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32})\b", re.IGNORECASE
)
WORD_STARTS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")
LONGEST_ID: Final = 255
Key = tuple[str, str]
"""Kind and id, in lower case."""
NAMED: Final = """
SELECT 'vm', openstack_id, name FROM hosts_instance WHERE openstack_id = ANY(%(ids)s)
UNION ALL
SELECT 'project', openstack_id, name FROM hosts_project WHERE openstack_id = ANY(%(ids)s)
UNION ALL
SELECT 'host', openstack_id, name FROM hosts_host WHERE openstack_id = ANY(%(ids)s)
UNION ALL
SELECT 'domain', openstack_id, name FROM hosts_domain WHERE openstack_id = ANY(%(ids)s)
UNION ALL
SELECT 'aggregate', uuid, name FROM hosts_aggregate WHERE uuid = ANY(%(ids)s)
UNION ALL
SELECT 'provider', uuid::text, name FROM placement_provider
 WHERE uuid = ANY(%(uuids)s::uuid[])
"""
#: What a uuid in a text is taken for, in this order; what is read alone comes last.
KINDS: Final = (
    "vm",
    "project",
    "host",
    "domain",
    "aggregate",
    "provider",
    "commitment",
    "reservation",
)
#: Other words for kinds, in lower case and without what separates words.
ALIASES: Final = {"instance": "vm", "consumer": "vm", "resourceprovider": "provider"}


class Names:
    """Names by kind and public id."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = frozenset(one for one in ids if one and len(one) <= LONGEST_ID)

    def of(self, object_type: str, public_id: str) -> str:
        """Return the name of an object, empty where none is known."""
        words = object_type.lower().replace("_", "").replace(" ", "")
        kind = ALIASES.get(words, words)
        return self._of_kind(kind).get((kind, public_id.lower()), "")

    def link(self, object_type: str, public_id: str) -> SafeString | str:
        """Link to an object by its name, by its id where it has none."""
        return find_link(object_type, public_id, self.of(object_type, public_id))

    def linked(self, text: str) -> SafeString | str:
        """Return a text with links in place of the uuids whose names are known."""
        parts: list[str] = []
        at = 0
        for found in UUIDS.finditer(text):
            uuid = found.group()
            kind = next((kind for kind in KINDS if self.of(kind, uuid)), "")
            if not kind:
                continue
            link = find_link(kind, uuid, self.of(kind, uuid))
            parts += [escape(text[at : found.start()]), link]
            at = found.end()
        if not parts:
            return text
        return SafeString("".join([*parts, escape(text[at:])]))

    def plain(self, words: str) -> str:
        """Return words with blanks between them, names in place of ids that have one."""
        return " ".join(
            next(filter(None, (self.of(kind, word) for kind in KINDS)), word)
            for word in words.split(" ")
        )

    def _of_kind(self, kind: str) -> Mapping[Key, str]:
        if kind == "commitment":
            return self._commitments
        return self._reservations if kind == "reservation" else self._named

    @cached_property
    def _named(self) -> Mapping[Key, str]:
        if not self.ids:
            return {}
        found = fetch_rows(NAMED, {"ids": sorted(self.ids), "uuids": self._uuids})
        return {(kind, key.lower()): name for kind, key, name in found if name}

    @cached_property
    def _commitments(self) -> Mapping[Key, str]:
        if not self.ids:
            return {}
        found = Commitment.objects.filter(commitment_uuid__in=self.ids).only(
            "commitment_uuid", "resource_type", "requested_amount", "flavor_group_name", "zone"
        )
        return {("commitment", row.commitment_uuid.lower()): commitment_name(row) for row in found}

    @cached_property
    def _reservations(self) -> Mapping[Key, str]:
        if not self._uuids:
            return {}
        found = Reservation.objects.filter(uuid__in=self._uuids).select_related(
            "commitment", "failover"
        )
        return {("reservation", str(row.uuid)): reservation_title(row) for row in found}

    @cached_property
    def _uuids(self) -> list[str]:
        return sorted(str(one) for one in map(_uuid, self.ids) if one is not None)


NO_NAMES: Final = Names(())


def reservation_name(row: Reservation) -> str:
    """Return what people call a reservation: a failover slot has a name, a slot its number."""
    failover = getattr(row, "failover", None)
    return str(row if failover is None else failover)


def reservation_title(row: Reservation) -> str:
    """Return the name of a reservation where its commitment is not to be seen beside it."""
    name = reservation_name(row)
    return name if row.commitment is None else f"{name} of {commitment_name(row.commitment)}"


def name_rows(rows: Sequence[Model], fields: Iterable[str]) -> None:
    """Let rows of a page share the names of all that they mention.

    Args:
        fields: Columns that hold public ids, texts with uuids in them, or structures of such.
    """
    fields = tuple(fields)
    names = Names(
        one for row in rows for field in fields for one in mentioned(getattr(row, field, None))
    )
    for row in rows:
        row.names = names  # type: ignore[attr-defined]  # read by names_of


def names_of(row: object) -> Names:
    """Return the names that a row was given, none if nobody gave it any."""
    return getattr(row, "names", NO_NAMES)


class AboutObject(Protocol):
    """A row about an object of some kind."""

    object_type: str
    object_id: str


def object_link(row: AboutObject) -> SafeString | str:
    """Link to what a row is about: its kind, and its name where it has one."""
    kind, public_id = row.object_type, row.object_id
    names, words = names_of(row), kind_words(kind)
    name = names.of(kind, public_id) or _told_name(row)
    inside = public_id if name else names.linked(public_id)  # an id may be made of several
    if isinstance(inside, SafeString):
        return format_html("{} {}", words, inside)
    return find_link(kind, public_id, f"{words} {name or public_id}")


def _told_name(row: AboutObject) -> str:
    """Return the name of a commitment that is gone, from what the row says of it."""
    facts = getattr(row, "after", None) or getattr(row, "before", None)
    if row.object_type != "Commitment" or not isinstance(facts, dict):
        return ""
    kind, amount = facts.get("resourceType"), facts.get("amount")
    group, zone = facts.get("flavorGroupName"), facts.get("availabilityZone")
    if not (kind and group and zone and isinstance(amount, int)):
        return ""
    return f"{amount_text(str(kind), amount)} of {group} in {zone}"


def kind_words(object_type: str) -> str:
    """Return a kind of objects in words: ``resource provider`` of ``ResourceProvider``."""
    words = WORD_STARTS.sub(" ", object_type).replace("_", " ").lower()
    return "VM" if words in {"vm", "instance"} else words


def mentioned(content: Any) -> Iterator[str]:  # Any: what columns hold
    """Return the ids that a value may be or hold."""
    if isinstance(content, UUID):
        yield str(content)
    elif isinstance(content, str):
        if " " not in content:
            yield content
        yield from UUIDS.findall(content)
    elif isinstance(content, dict | list):
        yield from UUIDS.findall(orjson.dumps(content, default=str).decode())


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
