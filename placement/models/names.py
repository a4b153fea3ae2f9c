"""What has a name and no more: classes, traits, aggregates, consumer types, projects, users."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now

CUSTOM_PREFIX = "CUSTOM_"


class NextCustomClassID(models.Func):
    """The next id of a resource class that is not in the fixed list."""

    template = "nextval('placement_resource_class_custom')"
    output_field = models.IntegerField()


class ResourceClass(models.Model):
    """A kind of resource, such as ``VCPU``.

    Invariants: the standard classes have the ids 0..20 of their fixed order; every other class has
    an id from a sequence that starts at 10,000. Ids are never used again. Writers: ``services``.

    Attributes:
        is_copied: It came from another Placement by itself, and goes with it.
    """

    id = models.IntegerField(primary_key=True, db_default=NextCustomClassID())
    name = models.CharField(max_length=255, unique=True)
    is_copied = models.BooleanField(db_default=False)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_resource_class"
        verbose_name_plural = "resource classes"
        ordering = ("id",)

    def __str__(self) -> str:
        return self.name

    @property
    def is_standard(self) -> bool:
        """Whether the class comes from the standard list and not from an operator."""
        return not self.name.startswith(CUSTOM_PREFIX)


class Trait(models.Model):
    """A quality that a provider has or has not. Writers: ``services``.

    Attributes:
        is_copied: It came from another Placement by itself, and goes with it.
    """

    name = models.CharField(max_length=255, unique=True)
    is_copied = models.BooleanField(db_default=False)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_trait"
        ordering = ("id",)

    def __str__(self) -> str:
        return self.name

    @property
    def is_standard(self) -> bool:
        """Whether the trait comes from the standard list and not from an operator."""
        return not self.name.startswith(CUSTOM_PREFIX)


class Aggregate(models.Model):
    """A label that groups providers; it exists once it was mentioned.

    ``name`` is for display: what Nova calls the aggregate, or the zone. Writers: ``services``.
    """

    uuid = models.UUIDField(unique=True)
    name = models.CharField(max_length=255, blank=True, db_default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "placement_aggregate"
        ordering = ("id",)

    def __str__(self) -> str:
        return self.name or str(self.uuid)


class ConsumerType(models.Model):
    """What kind of thing holds allocations, such as ``INSTANCE``. Writers: allocation writes."""

    id = models.SmallAutoField(primary_key=True)
    name = models.CharField(max_length=255, unique=True)

    class Meta:
        db_table = "placement_consumer_type"
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class ConsumerProject(models.Model):
    """A project as consumers name it. Writers: allocation writes."""

    external_id = models.CharField(max_length=255, unique=True)

    class Meta:
        db_table = "placement_project"
        ordering = ("external_id",)

    def __str__(self) -> str:
        return self.external_id


class ConsumerUser(models.Model):
    """A user as consumers name it. Writers: allocation writes."""

    external_id = models.CharField(max_length=255, unique=True)

    class Meta:
        db_table = "placement_user"
        ordering = ("external_id",)

    def __str__(self) -> str:
        return self.external_id
