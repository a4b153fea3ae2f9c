"""What the feed keeps of a live cloud between its passes."""

from __future__ import annotations

from django.db import models


class FeedPass(models.Model):
    """How far the feed is with one kind of lists of the cloud: one row a kind.

    ``listed_at`` is when the last completed pass began to read: what the cloud said until then is
    in the rows. Writer: :mod:`hosts.feed.state`.
    """

    kind = models.CharField(max_length=32, unique=True)
    passes = models.BigIntegerField(default=0, help_text="passes that were completed, ever")
    began_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True, help_text="last completed pass")
    listed_at = models.DateTimeField(
        null=True, blank=True, help_text="when the last completed pass began to read"
    )
    counts = models.JSONField(default=dict, blank=True)
    refusal = models.TextField(blank=True, help_text="what the last completed pass did not believe")
    error = models.TextField(blank=True, help_text="why the last pass was not completed")
    failures = models.IntegerField(default=0, help_text="passes in a row that were not completed")

    class Meta:
        verbose_name = "pass of the feed"
        verbose_name_plural = "passes of the feed"
        ordering = ("kind",)

    def __str__(self) -> str:
        return self.kind


class FeedHint(models.Model):
    """Something that may have changed in the cloud: the feed looks, and forgets the hint.

    Writer: :mod:`hosts.feed.hints`.
    """

    kind = models.CharField(max_length=32)
    object_id = models.CharField(max_length=64, blank=True)
    seen_at = models.DateTimeField()

    class Meta:
        verbose_name = "hint of the feed"
        verbose_name_plural = "hints of the feed"
        ordering = ("id",)
        constraints = [
            models.UniqueConstraint(fields=["kind", "object_id"], name="hosts_feedhint_once")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.object_id}".strip()


class ListedProvider(models.Model):
    """A resource provider as Placement told it last, to be asked again when its generation changed.

    Writer: :mod:`hosts.feed.providers`.
    """

    uuid = models.CharField(max_length=64, unique=True)
    generation = models.BigIntegerField()
    body = models.JSONField()
    read_at = models.DateTimeField()

    class Meta:
        verbose_name = "listed provider"
        ordering = ("uuid",)

    def __str__(self) -> str:
        return self.uuid
