"""VMs, where they are moving, and those that are gone."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from hosts.models.columns import parts_of_names
from hosts.models.hosts import Host
from journal.models import FollowedModel


class Instance(FollowedModel):
    """A VM (Nova server) with its size and place. Writers: import, sync.

    ``host`` is empty for a VM that no known host carries (shelved, errored, unknown host); such a
    VM consumes nothing. ``host_name`` keeps what Nova said.
    """

    openstack_id = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=255, blank=True)
    project_id = models.CharField(max_length=64)  # hosts_instance_project_idx begins with it
    user_id = models.CharField(max_length=64, blank=True)
    flavor_name = models.CharField(max_length=255, db_index=True)
    vcpus = models.PositiveIntegerField()
    memory_bytes = models.BigIntegerField()
    disk_gib = models.PositiveIntegerField(default=0)
    flavor_extra_specs = models.JSONField(default=dict, blank=True)
    host = models.ForeignKey(
        Host, null=True, blank=True, on_delete=models.PROTECT, related_name="instances"
    )
    host_name = models.CharField(max_length=255, blank=True)
    zone = models.CharField(max_length=255, blank=True)
    status = models.CharField(max_length=32, db_index=True)
    vm_state = models.CharField(max_length=32, blank=True)
    task_state = models.CharField(max_length=64, blank=True)
    power_state = models.IntegerField(default=0)
    os_type = models.CharField(max_length=255, default="unknown")
    image_id = models.CharField(max_length=64, blank=True)
    launched_at = models.DateTimeField(null=True, blank=True)
    nova_created_at = models.DateTimeField(null=True, blank=True)
    nova_updated_at = models.DateTimeField(null=True, blank=True)
    arrived_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When it came to the host it is on; kept by the database.",
    )
    metadata = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name = "VM"
        verbose_name_plural = "VMs"
        ordering = ("name", "id")
        indexes = [
            models.Index(fields=["project_id", "zone"], name="hosts_instance_project_idx"),
            models.Index(
                fields=["name"], opclasses=["varchar_pattern_ops"], name="hosts_instance_name_idx"
            ),
            parts_of_names("hosts_instance_parts_idx"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(memory_bytes__gte=0), name="hosts_instance_memory_not_negative"
            )
        ]

    def __str__(self) -> str:
        return self.name or self.openstack_id


class ServerMigration(models.Model):
    """A VM on its way to another host, as Nova lists it: live, cold, resized or evacuated.

    Hosts are by the name of the hypervisor, else of its compute service. Sizes are what the VM
    takes on each, NULL while nobody knows. ``over_at`` is set when Nova no longer has it in
    progress; the row goes once the VM list is as new. Writers: :mod:`hosts.region.moving`, and
    whoever holds the room of such VMs.
    """

    uuid = models.CharField(max_length=64, unique=True)
    vm_uuid = models.CharField(max_length=64, db_index=True)
    migration_type = models.CharField(max_length=32)
    status = models.CharField(max_length=64)
    source_name = models.CharField(max_length=255, blank=True)
    target_name = models.CharField(max_length=255, blank=True)
    source_memory_bytes = models.BigIntegerField(null=True, blank=True)
    source_vcpus = models.BigIntegerField(null=True, blank=True)
    target_memory_bytes = models.BigIntegerField(null=True, blank=True)
    target_vcpus = models.BigIntegerField(null=True, blank=True)
    over_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = "migration of a VM"
        verbose_name_plural = "migrations of VMs"
        ordering = ("uuid",)

    def __str__(self) -> str:
        return self.uuid


class DeletedVM(models.Model):
    """A VM that Nova said is deleted, for as long as an older list may still show it.

    ``seen_at`` is when the reading began that showed it so. Writers: import, sync.
    """

    openstack_id = models.CharField(max_length=64, unique=True)
    seen_at = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name = "deleted VM"
        ordering = ("id",)

    def __str__(self) -> str:
        return self.openstack_id
