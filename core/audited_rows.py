"""Rows that operators edit one by one: written with an audit entry, and announced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db import models, transaction

from journal.actors import Actor
from journal.services import Change, record_changes

RowT = TypeVar("RowT", bound=models.Model)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRows(Generic[RowT]):
    """How the rows of a model are saved and removed; joins the caller's transaction.

    Locks: the row.

    Attributes:
        object_type: What the audit calls them; the first part of actions.
        fields: Returns what the audit shows of a row; a row that shows the same is not written.
        name: Returns how the audit names a row that is stored.
        topic: Outbox topic; empty when nobody outside needs to hear of it.
        tells_new: Whether the first save is another action (``_created``, later ``_changed``) than
            others, which are ``_saved``.
    """

    model: type[RowT]
    object_type: str
    fields: Callable[[RowT], Mapping[str, Any]]
    name: Callable[[RowT], str] = lambda row: str(row.pk)
    topic: str = ""
    tells_new: bool = False

    def save(self, row: RowT, *, actor: Actor, request_id: str, reason: str = "") -> bool:
        """Store a row that was checked, new or edited; return whether anything differs.

        Raises:
            django.db.IntegrityError: The row breaks a rule of the table.
        """
        with transaction.atomic():
            stored = self._rows(no_key=True).filter(pk=row.pk).first()
            before = None if stored is None else self.fields(stored)
            after = self.fields(row)
            if after == before:
                return False
            row.save()
            verb = ("created" if before is None else "changed") if self.tells_new else "saved"
            change = self._change(verb, self.name(row), before, after, reason)
            record_changes([change], actor=actor, request_id=request_id)
        return True

    def remove(self, pk: object, *, actor: Actor, request_id: str) -> bool:
        """Remove a row; return whether there was one."""
        with transaction.atomic():
            row = self._rows().filter(pk=pk).first()
            if row is None:
                return False
            change = self._change("removed", self.name(row), self.fields(row), None)
            row.delete()
            record_changes([change], actor=actor, request_id=request_id)
        return True

    def _rows(self, *, no_key: bool = False) -> models.QuerySet[RowT]:
        manager = self.model._default_manager  # noqa: SLF001 - Django's documented model API
        return manager.select_for_update(no_key=no_key)

    def _change(
        self,
        verb: str,
        name: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        reason: str = "",
    ) -> Change:
        return Change(
            action=f"{self.object_type}_{verb}",
            object_type=self.object_type,
            object_id=name,
            before=before,
            after=after,
            reason=reason,
            topic=self.topic,
        )
