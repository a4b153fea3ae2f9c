"""Sections whose elements are the rows of one table, one for one (spec region-file)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import models

from hosts.region.merging import Merge, merge
from hosts.region.node import Json, Node
from hosts.region.prune import prune_rows
from hosts.region.registry import DumpOptions, Phase, RegionSection, Step
from hosts.region.run import ImportRun, Unique
from hosts.region.staging import StagingTable
from hosts.region.writing import write_part


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSection:
    """A list that is staged, merged and pruned as it is.

    Attributes:
        path: JSON path of the list.
        order: When its rows are written, and in reverse pruned.
        model: Model of the rows.
        columns: Columns that the files speak of, the one that identifies a row first.
        unique: Members that no two elements share -> what errors call them.
        row: Values of the columns of an element, JSON as text.
        element: What a dump holds of a row.
        before_write: Done before the rows are merged, in one transaction with that.
    """

    path: str
    order: int
    model: type[models.Model]
    columns: Sequence[str]
    unique: Mapping[str, str]
    row: Callable[[Node], tuple[object, ...]]
    element: Callable[[Any], Json]  # Any: a row of the model
    before_write: Callable[[], object] | None = None

    def parts(self) -> tuple[RegionSection | Step, ...]:
        """Return the section and its steps, to be registered."""
        name = self.path.partition(".")[2]
        return (
            RegionSection(path=self.path, reader=self._read, dumper=self._dump),
            Step(
                Phase.WRITE,
                self.order,
                name,
                self._write,
                after=frozenset({self.path}),
                is_divided=True,
            ),
            Step(Phase.PRUNE, self.order, name, self._prune, is_divided=True),
        )

    def _read(self, run: ImportRun) -> Callable[[Node], None]:
        stage = StagingTable(run, table=self.model._meta.db_table, columns=self.columns)  # noqa: SLF001 - Django's public name for it
        run.stash[self.path] = stage
        unique = {member: Unique(what) for member, what in self.unique.items()}

        def read(node: Node) -> None:
            for member, seen in unique.items():
                seen.check(node, node.text(member), member)
            stage.add(self.row(node))

        return read

    def _write(self, run: ImportRun) -> None:
        if self.before_write is None:
            self._merge(run)
        else:
            write_part(run, partial(self._prepare_and_merge, run, self.before_write))

    def _prepare_and_merge(self, run: ImportRun, prepare: Callable[[], object]) -> None:
        prepare()
        self._merge(run)

    def _merge(self, run: ImportRun) -> None:
        table = self.model._meta.db_table  # noqa: SLF001 - Django's public name for it
        merge(run, Merge(table=table, key=self.columns[0], columns=self.columns), section=self.path)

    def _prune(self, run: ImportRun) -> None:
        if run.prunes(self.path):
            prune_rows(run, section=self.path, model=self.model, key=self.columns[0])

    def _dump(self, _: DumpOptions) -> Iterator[Json]:
        for row in self.model._default_manager.order_by(self.columns[0]).iterator():  # noqa: SLF001 - Django's public name for it
            yield self.element(row)
