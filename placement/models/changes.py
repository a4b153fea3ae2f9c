"""The log by which readers in other processes follow what changed (spec placement, 9.4)."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

from journal.models import CurrentTransactionID

ALL_ROOTS = 0


class Change(models.Model):
    """A tree of providers, or the names of traits and classes, changed.

    A reader remembers ``pg_snapshot_xmin`` of its last read and takes every row with ``xid`` at or
    above it that it has not applied yet; this cannot miss a late commit. Writers: every service of
    this app, in the transaction of its change. Rows are pruned after an hour.

    Attributes:
        root_id: Root of the changed tree at the time; no foreign key, the tree may be gone. A
            subtree that moved logs both roots. ``ALL_ROOTS`` for names and whatever else touches
            more than listed trees.
        kind: What has to be read again; see :class:`Change.Kind`.
    """

    class Kind(models.IntegerChoices):
        """What of a tree changed, from little to much."""

        USAGE = 1, "allocated amounts only"
        TREE = 2, "providers, inventories, traits or aggregates"
        NAMES = 3, "names of traits or resource classes"

    seq = models.BigAutoField(primary_key=True)
    xid = models.BigIntegerField(db_default=CurrentTransactionID(), db_index=True)
    root_id = models.BigIntegerField()
    kind = models.SmallIntegerField(choices=Kind)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_change"
        ordering = ("seq",)

    def __str__(self) -> str:
        return f"{self.get_kind_display()} of tree {self.root_id}"
