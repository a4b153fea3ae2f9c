"""Where moving to our tables stands, and what is under way meanwhile (docs/gateway.md)."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

ONLY_ROW = 1


class Phase(models.TextChoices):
    """Which side is the truth, and whether writes may begin."""

    OFF = "off", "not begun"
    COPYING = "copying", "the other Placement answers; changes are copied"
    CLOSING = "closing", "the other Placement answers; writes are held"
    SWITCHED = "switched", "Headroom answers; changes are mirrored back"
    RETURNING = "returning", "Headroom answers; writes are held"
    PARTED = "parted", "each answers for its own providers"
    PARTING = "parting", "each answers for its own providers; writes are held"


class Cutover(models.Model):
    """The one row that every write reads; without it nothing has begun.

    Invariants: ``closes_at`` is set while writes are held; once it is over, whoever comes first
    sets the phase back. Writers: ``cutover.state`` alone.

    Attributes:
        closes_at: Until when writes are held at the longest.
        began_at: When copying began.
        switched_at: When Headroom became the truth.
        last_error: Why the last step stopped; empty after one that did not.
        reread_after: UUID of the provider that was read again last, for no reason.
        moved_provider: UUID of one that somebody changed over there without us, since the last
            ``copy`` of an operator.
        moved_at: When that was seen.
    """

    id = models.SmallIntegerField(primary_key=True, default=ONLY_ROW)
    phase = models.CharField(max_length=16, choices=Phase, db_default=Phase.OFF)
    closes_at = models.DateTimeField(null=True, blank=True)
    began_at = models.DateTimeField(null=True, blank=True)
    switched_at = models.DateTimeField(null=True, blank=True)
    last_error = models.TextField(blank=True, db_default="")
    last_error_at = models.DateTimeField(null=True, blank=True)
    reread_after = models.UUIDField(null=True, blank=True)
    moved_provider = models.UUIDField(null=True, blank=True)
    moved_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_cutover"
        constraints = [
            models.CheckConstraint(condition=Q(id=ONLY_ROW), name="placement_cutover_only_row")
        ]

    def __str__(self) -> str:
        return self.phase


class ForwardedWrite(models.Model):
    """A write that was handed on while copying: what it touches has to be copied once it ended.

    It is there before the write goes out. Writers: web processes, each its own; who copies takes
    those that ended.

    Attributes:
        generations: Of providers of which the generation alone may be another.
        ends_at: When it has ended at the latest, also if its process died.
        is_done: Whether there was an answer.
    """

    providers = ArrayField(models.UUIDField(), default=list)
    generations = ArrayField(models.UUIDField(), default=list)
    consumers = ArrayField(models.UUIDField(), default=list)
    has_names = models.BooleanField(default=False)
    ends_at = models.DateTimeField()
    is_done = models.BooleanField(db_default=False)

    class Meta:
        db_table = "placement_forwarded_write"

    def __str__(self) -> str:
        return f"write {self.pk}"


class WriteFence(models.Model):
    """A write about both sides that the other Placement does: until then we write none of these.

    It is there from before the other side has all of our writes about the same until what it did is
    here as well. Writers: ``cutover.fences``.

    Attributes:
        roots: Ids of trees of ours of which nothing else may be written here; 0 for all of them.
        consumers: UUIDs, likewise.
        is_whole: Whether more of those trees than generations may be another after it.
        sent_at: When it was about to go out; it may have been done since.
        ends_at: When whoever raised it is taken for dead, and what was sent for done or lost.
    """

    roots = ArrayField(models.BigIntegerField(), default=list)
    consumers = ArrayField(models.UUIDField(), default=list)
    is_whole = models.BooleanField(db_default=False)
    created_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True, blank=True)
    ends_at = models.DateTimeField()

    class Meta:
        db_table = "placement_write_fence"

    def __str__(self) -> str:
        return f"write {self.pk}"


class CopyDue(models.Model):
    """Something whose copy may be another than the other Placement has. Writers: who copies."""

    class Kind(models.TextChoices):
        """What kind of thing."""

        PROVIDER = "provider", "provider"
        GENERATION = "generation", "generation of a provider"
        CONSUMER = "consumer", "consumer"
        NAMES = "names", "traits and resource classes"

    pk = models.CompositePrimaryKey("kind", "uuid")
    kind = models.CharField(max_length=16, choices=Kind)
    uuid = models.UUIDField()

    class Meta:
        db_table = "placement_copy_due"

    def __str__(self) -> str:
        return f"{self.kind} {self.uuid}"


class MirroredWrite(models.Model):
    """A write of ours that the other Placement gets as well; gone once it has it.

    Its number is drawn while it holds the locks of what it changes, so that writes which share
    anything are numbered in the order of their commits. Writers: web processes in the transaction
    of the write; who mirrors.

    Attributes:
        target: Path below the mount point, quoted, with its query.
        minor: Version of the request.
        roots: Ids of the trees of providers it touched; 0 for all.
        providers_after: Generation by UUID, of all of these trees, after it.
        consumers_after: Likewise of the consumers it names that hold something.
        sent_at: When it was sent first: it may have been done.
        refusal: What the other Placement said to it, which it must not.
    """

    method = models.CharField(max_length=8)
    target = models.TextField()
    minor = models.SmallIntegerField()
    body = models.BinaryField()
    roots = ArrayField(models.BigIntegerField(), default=list)
    consumers = ArrayField(models.UUIDField(), default=list)
    providers_after = models.JSONField(default=dict)
    consumers_after = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True, blank=True)
    refusal = models.TextField(blank=True, db_default="")

    class Meta:
        db_table = "placement_mirrored_write"
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.method} {self.target}"
