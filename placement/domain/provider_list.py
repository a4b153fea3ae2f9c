"""Lists of providers as JSON (spec placement, 4.2), from a snapshot or from rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import orjson

from placement.domain.querystring import AggregateFilter, TraitFilter
from placement.domain.snapshot import NO_ROW, BoolColumn, Int64Column, Snapshot

#: Forms and lists of each of which texts are kept; those of ten thousand providers have eight
#: megabytes.
MOST_FORMS: Final = 2
MOST_LISTS: Final = 2
#: Providers whose text is kept in one piece.
BLOCK: Final = 64


class _Provider(Protocol):
    """What a list shows of a provider."""

    @property
    def uuid(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def parent_uuid(self) -> str | None: ...
    @property
    def root_uuid(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProviders:
    """Providers as members of a JSON list.

    Attributes:
        pieces: Of the text, which follow each other, commas included.
        newest: When one of them changed last, seconds since 1970; None where there is none.
    """

    pieces: Sequence[bytes]
    newest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilter:
    """Which providers are listed, by what they have themselves.

    Attributes:
        resources: Classes and amounts for which there must be room.
    """

    resources: tuple[tuple[str, int], ...]
    traits: TraitFilter
    aggregates: AggregateFilter

    def passing(self, snapshot: Snapshot) -> BoolColumn:
        """Return bool[N], the providers that pass."""
        passing: BoolColumn = np.ones(len(snapshot), dtype=np.bool_)
        for name, amount in self.resources:
            columns = snapshot.classes.get(name)
            has_room = np.zeros(len(snapshot), dtype=np.bool_)
            if columns is not None:
                has_room[columns.rows_that_fit(amount)] = True
            passing &= has_room
        for names in self.traits.required:
            passing &= snapshot.has_any_trait(names)
        if self.traits.forbidden:
            passing &= ~snapshot.has_any_trait(self.traits.forbidden)
        for uuids in self.aggregates.required:
            passing &= snapshot.in_any_aggregate(uuids)
        if self.aggregates.forbidden:
            passing &= ~snapshot.in_any_aggregate(self.aggregates.forbidden)
        return passing


@dataclass(frozen=True, slots=True, eq=False)
class ListTexts:
    """Texts of a form, kept with a snapshot for as long as trees and names stay.

    Attributes:
        lists: Filter -> for each block of providers in the order of their keys, those that pass
            and their generations, as bytes, and the text that this gave.
    """

    lists: dict[ListFilter, list[tuple[bytes, bytes]]]

    def blocks(self, chosen: ListFilter, count: int) -> list[tuple[bytes, bytes]]:
        """Return what is known of the blocks of a list, which the caller brings up to date."""
        known = self.lists.get(chosen)
        if known is None:
            while len(self.lists) >= MOST_LISTS:
                self.lists.pop(next(iter(self.lists)), None)
            known = self.lists[chosen] = [(b"", b"")] * count
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderForm:
    """How a version writes a provider.

    Attributes:
        links: Encoded links, with an asterisk for each uuid.
        is_nested: Whether parent and root are shown.
    """

    links: str
    is_nested: bool

    def text(self, provider: _Provider) -> str:
        """Return a provider as JSON."""
        head = _head(provider.uuid, provider.name)
        tail = self._tail(provider.uuid, provider.parent_uuid, provider.root_uuid)
        return f"{head}{provider.generation}{tail}"

    def listed(self, snapshot: Snapshot, chosen: ListFilter) -> ListedProviders:
        """Return the providers of a snapshot that pass, in the order of their keys.

        A block is written anew where a generation moved on, or another provider passes.
        """
        passing = chosen.passing(snapshot)
        if not passing.any():
            return ListedProviders(pieces=(), newest=None)
        order = snapshot.rows_in_order()
        marks, generations = passing[order], snapshot.generations[order]
        mark_bytes, generation_bytes = marks.tobytes(), generations.tobytes()
        texts = self._kept(snapshot)
        blocks = texts.blocks(chosen, -(-len(order) // BLOCK))
        pieces: list[bytes] = []
        for number, (seen, known) in enumerate(blocks):
            first, last = number * BLOCK, (number + 1) * BLOCK
            now, text = mark_bytes[first:last] + generation_bytes[first * 8 : last * 8], known
            if seen != now:
                rows = order[first:last][marks[first:last]]
                text = self._joined(snapshot, rows)
                blocks[number] = now, text
            if text:
                pieces += (text, b",")
        pieces.pop()
        return ListedProviders(pieces=pieces, newest=float(snapshot.modified[passing].max()))

    def _kept(self, snapshot: Snapshot) -> ListTexts:
        known = snapshot.caches.listed
        texts = known.get(self)
        if texts is None:
            texts = ListTexts({})
            while len(known) >= MOST_FORMS:
                known.pop(next(iter(known)), None)
            known[self] = texts
        return texts

    def _joined(self, snapshot: Snapshot, rows: Int64Column) -> bytes:
        """Return some providers, joined by commas."""
        above = snapshot.parents[rows]
        roots = snapshot.roots()[snapshot.trees[rows]]
        shown = zip(
            snapshot.names.of_rows(rows),
            snapshot.uuids_of(rows),
            snapshot.generations[rows].tolist(),
            above.tolist(),
            snapshot.uuids_of(above),  # of row -1 for a root, which has none
            snapshot.uuids_of(roots),
            strict=True,
        )
        return ",".join(
            [
                f"{_head(uuid, name)}{generation}"
                f"{self._tail(uuid, None if parent == NO_ROW else parent_uuid, root)}"
                for name, uuid, generation, parent, parent_uuid, root in shown
            ]
        ).encode()

    def _tail(self, uuid: str, parent: str | None, root: str) -> str:
        links = self.links.replace("*", uuid)
        if not self.is_nested:
            return f',"links":{links}}}'
        above = f'"{parent}"' if parent else "null"
        return f',"links":{links},"parent_provider_uuid":{above},"root_provider_uuid":"{root}"}}'


def _head(uuid: str, name: str) -> str:
    return f'{{"uuid":"{uuid}","name":{orjson.dumps(name).decode()},"generation":'
