"""Audit entries, outbox, heartbeats and the log of changes: what every writer stands on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models.functions import Now

CURRENT_XID_SQL = "(pg_current_xact_id()::text::bigint)"


class CurrentTransactionID(models.Func):
    """The writing transaction's 64-bit id, as a bigint."""

    template = CURRENT_XID_SQL
    output_field = models.BigIntegerField()


class TouchedField(models.DateTimeField):  # type: ignore[type-arg]  # not generic when it runs
    """When a row of a table without trigger was last saved, by the database's clock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # Any: what a field takes
        super().__init__(*args, **{"db_default": Now(), "editable": False, **kwargs})

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """Be a plain field in migrations: the rest is not the table's business."""
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:  # noqa: FBT001 - Django's
        """Let the database say the time of an update; of an insert its default does."""
        return super().pre_save(model_instance, add) if add else Now()


class TrackedModel(models.Model):
    """A row that says which transaction wrote it last.

    ``changed_xid`` is the id of the last writing transaction, set by a database trigger on every
    insert and update (design, "Concurrency"): the version of the row. ``updated_at`` is set by the
    same trigger, so that both come from the database.

    The column has no index, since an index on what every write changes keeps PostgreSQL from
    updating a row within its page: writes to tables that readers follow (:class:`FollowedModel`),
    and deletions of all tracked rows, are in :class:`LoggedChange`.
    """

    changed_xid = models.BigIntegerField(db_default=CurrentTransactionID(), editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        abstract = True


class FollowedModel(TrackedModel):
    """A tracked row of a table in which readers look up what changed since their last read.

    Its writes are in :class:`LoggedChange`, by triggers in ``sql/<app>_triggers.sql`` of its app.
    """

    class Meta:
        abstract = True


class RecordedRun(models.Model):
    """One run of a job, as people read of it: when, what it counted, why it ended; newest first.

    Each has an ``outcome`` of its own words beside.
    """

    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    counts = models.JSONField(default=dict)
    message = models.TextField(blank=True)

    class Meta:
        abstract = True
        ordering = ("-id",)


class AuditEntry(models.Model):
    """Who changed what, from what to what, and why. Append-only: a trigger refuses the rest.

    Writers: every service, in the transaction of the change, through :mod:`journal.services`.
    """

    created_at = models.DateTimeField(db_default=Now(), db_index=True)
    actor = models.CharField(max_length=255)
    request_id = models.CharField(max_length=255, blank=True, db_index=True)
    action = models.CharField(max_length=64)
    object_type = models.CharField(max_length=64)
    object_id = models.CharField(max_length=255)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    reason = models.TextField(blank=True)

    class Meta:
        verbose_name_plural = "audit entries"
        ordering = ("-id",)
        indexes = [
            models.Index(
                fields=["object_type", "object_id", "-id"], name="journal_audit_object_idx"
            ),
            models.Index(fields=["action", "-id"], name="journal_audit_action_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.object_type} {self.object_id}"


class Outbox(models.Model):
    """A change that readers outside the database still have to hear of.

    Written in the transaction of the change; ``transaction_id`` lets a reader take only entries
    whose transaction is older than every running one, so none is missed or read twice.
    """

    created_at = models.DateTimeField(db_default=Now())
    transaction_id = models.BigIntegerField(db_default=CurrentTransactionID(), db_index=True)
    topic = models.CharField(max_length=64)
    object_type = models.CharField(max_length=64)
    object_id = models.CharField(max_length=255)
    payload = models.JSONField(default=dict)

    class Meta:
        verbose_name_plural = "outbox"
        ordering = ("transaction_id", "id")
        indexes = [
            models.Index(fields=["topic", "transaction_id"], name="journal_outbox_topic_idx"),
            models.Index(fields=["created_at"], name="journal_outbox_age_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.object_id}"


class LoggedChange(models.Model):
    """Rows that a statement wrote or deleted; written by trigger, forgotten after a while.

    Who follows changes asks as :mod:`core.changes` says.
    """

    table_name = models.CharField(max_length=64)
    row_ids = ArrayField(models.BigIntegerField())
    is_deletion = models.BooleanField(default=False)
    changed_xid = models.BigIntegerField(db_default=CurrentTransactionID(), db_index=True)
    logged_at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [
            BrinIndex(fields=["logged_at"], name="journal_logged_at_idx", pages_per_range=16)
        ]

    def __str__(self) -> str:
        return f"{self.table_name} {self.row_ids}"


class PrunedLog(models.Model):
    """How far a log was forgotten: a reader that is not past ``pruned_xid`` may miss entries.

    Only entries of transactions older than every running one are forgotten, so no position that is
    taken later is before ``pruned_xid``. The changes of the Placement tables are forgotten up to
    there only when it is an hour old. Writers: :mod:`journal.pruning`, in the transaction that
    forgets, and ``placement.services.upkeep``.
    """

    class Log(models.TextChoices):
        """The logs that are forgotten."""

        DELETIONS = "deletions", "deletions of tracked rows"
        OUTBOX = "outbox", "outbox"
        PLACEMENT_CHANGES = "placement_changes", "changes of the Placement tables"

    log = models.CharField(max_length=32, unique=True, choices=Log.choices)
    pruned_xid = models.BigIntegerField()
    pruned_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("log",)

    def __str__(self) -> str:
        return f"{self.log} up to {self.pruned_xid}"


class LogConsumer(models.Model):
    """How far somebody followed the logs who is told of every change, however long it was away.

    Neither log is forgotten beyond ``position``, the text of a :class:`journal.history.Moment`,
    unless the consumer did not move for ``HEADROOM_JOURNAL__CONSUMER_AGE_HOURS``: then it reads
    everything anew. Writers: the consumer itself.
    """

    name = models.CharField(max_length=64, unique=True)
    position = models.TextField(blank=True, help_text="empty: everything is read anew")
    moved_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class ProcessClock(models.Model):
    """How far the clock of a process was from the database's at its last look.

    Writers: :mod:`journal.clock`, every few seconds for each process that sends or runs tasks.
    """

    process = models.CharField(max_length=255, unique=True)
    deviation_seconds = models.FloatField(help_text="positive when it is ahead")
    looked_at = models.DateTimeField()

    class Meta:
        ordering = ("process",)

    def __str__(self) -> str:
        return f"{self.process} {self.deviation_seconds:+.3f} s"


class Lease(models.Model):
    """Who does work that outlives a transaction, and until when.

    One row per kind of work (and zone), for ever. Writers: :mod:`journal.leases`. A new holder
    changes ``epoch``, a key, so that it waits for transactions that lock the row as they check it.
    """

    name = models.CharField(max_length=255, unique=True)
    holder = models.CharField(max_length=255)
    epoch = models.BigIntegerField(help_text="how often it has changed hands")
    taken_at = models.DateTimeField()
    renewed_at = models.DateTimeField()
    expires_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)
        constraints = [
            models.UniqueConstraint(fields=["name", "epoch"], name="journal_lease_epoch_is_key")
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.epoch}"


class BeatEntry(models.Model):
    """When beat sent an entry of its schedule last; written before the message is sent.

    Writers: :mod:`journal.beat`, only under the lease of the acting beat, whose epoch is noted.
    """

    entry = models.CharField(max_length=64, unique=True)
    last_run_at = models.DateTimeField()
    epoch = models.BigIntegerField()

    class Meta:
        verbose_name_plural = "beat entries"
        ordering = ("entry",)

    def __str__(self) -> str:
        return self.entry


class Heartbeat(models.Model):
    """The last sign of life of a periodic job; ``/readyz`` reads that of beat."""

    name = models.CharField(max_length=64, unique=True)
    beaten_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class KeptSums(models.Model):
    """Rows that a scrape tells without summing them up. Writers: :mod:`journal.kept_sums`."""

    name = models.CharField(max_length=64, unique=True)
    digest = models.CharField(max_length=64, help_text="of the statement and its parameters")
    figures = models.TextField(help_text="the rows as JSON; nobody asks for parts of it")
    computed_at = models.DateTimeField()

    class Meta:
        db_table = "journal_keptsums"
        ordering = ("name",)
        verbose_name_plural = "kept sums"

    def __str__(self) -> str:
        return self.name


class CheckFinding(models.Model):
    """What a check found when all were run last (``manage.py doctor``).

    Writer: :mod:`core.doctor.kept`, which writes all rows anew.
    """

    check_name = models.CharField(max_length=64)
    severity = models.CharField(max_length=16)
    found = models.TextField()
    todo = models.TextField(blank=True)
    looked_at = models.DateTimeField()

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.check_name}: {self.found}"


class KeptAnswer(models.Model):
    """What was answered to a write with an ``Idempotency-Key``. Writers: :mod:`core.idempotent`.

    ``status`` is null while the request is under way, or its process died.
    """

    key_digest = models.CharField(max_length=64, unique=True, help_text="of caller and key")
    request_digest = models.CharField(max_length=64, help_text="of method, path and body")
    claim = models.UUIDField(help_text="of the request that is under way")
    claimed_until = models.DateTimeField()
    status = models.PositiveSmallIntegerField(null=True)
    content_type = models.CharField(max_length=255, db_default="")
    content = models.BinaryField(db_default=b"")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("id",)
        indexes = [models.Index(fields=["created_at"], name="journal_keptanswer_age_idx")]

    def __str__(self) -> str:
        return self.key_digest
