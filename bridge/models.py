"""What the mirror knows of each object that it keeps in a cluster."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from bridge.domain.kinds import ObjectKind

KINDS = [(kind.value, kind.value) for kind in ObjectKind]


class MirrorState(models.Model):
    """One mirrored row: whether it waits to be written, and what was written last.

    The queue is in here: ``is_due`` is set in the transaction that moves the bridge's position
    past a change, and cleared by the one that notes what was written, unless ``wanted`` has grown
    meanwhile. So a change is neither lost nor doubled wherever the bridge dies. Digests are of
    what the cluster was sent; empty ones make the next write complete. Where ``is_suspect`` is set
    the next write looks at the object first. Writers: the bridge that holds the lease.
    """

    kind = models.CharField(max_length=32, choices=KINDS)
    source_id = models.BigIntegerField(help_text="key of the row")
    part_ids = ArrayField(
        models.BigIntegerField(), default=list, db_default=[], help_text="keys of rows within it"
    )
    is_due = models.BooleanField(default=True, db_default=True)
    wanted = models.BigIntegerField(default=1, db_default=1, help_text="counts what was asked for")
    due_at = models.DateTimeField(db_default=Now())
    is_first = models.BooleanField(
        default=False, db_default=False, help_text="first seen by reading everything: no event"
    )
    cluster = models.CharField(max_length=63, blank=True, db_default="")
    name = models.CharField(max_length=253, blank=True, db_default="")
    spec_digest = models.CharField(max_length=64, blank=True, db_default="")
    status_digest = models.CharField(max_length=64, blank=True, db_default="")
    resource_version = models.CharField(max_length=64, blank=True, db_default="")
    object_generation = models.BigIntegerField(default=0, db_default=0)
    observed_generation = models.BigIntegerField(null=True, blank=True)
    reason = models.CharField(max_length=80, blank=True, db_default="", help_text="of Ready")
    failures = models.PositiveIntegerField(default=0, db_default=0)
    error = models.TextField(blank=True, db_default="")
    drifts = models.PositiveIntegerField(
        default=0, db_default=0, help_text="how often others changed or deleted the object"
    )
    drifted_at = models.DateTimeField(
        null=True, blank=True, help_text="since when it is as others left it"
    )
    is_suspect = models.BooleanField(
        default=False, db_default=False, help_text="is not in the cluster as it was written"
    )
    adopted = models.JSONField(
        null=True, blank=True, help_text="what of it is left to others, and what the row said then"
    )
    transitions = models.JSONField(
        default=dict,
        db_default={},
        blank=True,
        help_text="conditions as they were written: status and time of the last transition",
    )
    written_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("kind", "name", "id")
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "source_id"], name="bridge_mirrorstate_row_unique"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=[kind for kind, _ in KINDS]),
                name="bridge_mirrorstate_kind_known",
            ),
        ]
        indexes = [
            models.Index(
                fields=["due_at", "id"], condition=Q(is_due=True), name="bridge_mirror_due_idx"
            ),
            models.Index(fields=["cluster", "kind", "name"], name="bridge_mirror_name_idx"),
            GinIndex(fields=["part_ids"], name="bridge_mirror_parts_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class OwnedFieldConflict(models.Model):
    """A field of a Hypervisor object that Headroom should write and cannot.

    Writer: the watcher of Hypervisor objects that holds the lease.
    """

    host_name = models.CharField(max_length=255)
    field = models.CharField(max_length=32)
    problem = models.TextField(help_text="who owns it, or why the API server refuses it")
    since = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("host_name", "field")
        constraints = [
            models.UniqueConstraint(
                fields=["host_name", "field"], name="bridge_ownedfieldconflict_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.host_name} {self.field}"
