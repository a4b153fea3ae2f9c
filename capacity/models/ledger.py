"""The reservation ledger and the room of each host (spec commitments, 2.2, 10)."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from capacity.ledger.in_flight_end import UNKNOWN_INTENT
from capacity.models.choices import AllocationState, ReadyReason, ReservationKind
from core.conditions import OneOf, none_negative
from hosts.agents.workload_models import Workload
from hosts.models import Host
from journal.models import CurrentTransactionID, FollowedModel
from scheduling.intents import Intent
from scheduling.needs import Needs
from scheduling.pipelines import SCHEDULING_DOMAINS
from scheduling.resources import ResourceVector

STORED_INTENTS = ("", UNKNOWN_INTENT, *(intent.value for intent in Intent))
"""What a placement may be for; empty where a reservation is for no VM."""


class HostCapacity(FollowedModel):
    """The truth about a host's room: what it has, what VMs take, what each kind of hold takes.

    ``committed_*``, ``failover_*`` and ``in_flight_*`` are the sums of ``Reservation.blocked_*`` of
    the rows whose target or confirmed host this is, ``committed_*`` with what ``LeavingRoom`` rows
    hold. A block is taken by one conditional update
    (``effective - allocated - blocked >= asked``), never by read-then-write. ``effective_*`` and
    ``allocated_*`` follow ``hosts`` and may leave a host over-subscribed; taking a block may not.
    ``counted_from`` is the source that ``allocated_*`` were counted from as a whole. Writers:
    ``capacity.ledger`` alone.
    """

    host = models.OneToOneField(Host, on_delete=models.CASCADE, related_name="room")
    zone = models.CharField(max_length=255, blank=True, db_index=True)
    effective_memory_bytes = models.BigIntegerField(default=0)
    effective_vcpus = models.BigIntegerField(default=0)
    allocated_memory_bytes = models.BigIntegerField(default=0)
    allocated_vcpus = models.BigIntegerField(default=0)
    counted_from = models.CharField(  # noqa: DJ001 - rows of the last release have none
        max_length=32,
        null=True,
        blank=True,
        help_text="Source of what is allocated; none where that is not known.",
    )
    committed_memory_bytes = models.BigIntegerField(default=0)
    committed_vcpus = models.BigIntegerField(default=0)
    failover_memory_bytes = models.BigIntegerField(default=0)
    failover_vcpus = models.BigIntegerField(default=0)
    in_flight_memory_bytes = models.BigIntegerField(default=0)
    in_flight_vcpus = models.BigIntegerField(default=0)
    oversubscribed_since = models.DateTimeField(null=True, blank=True)
    oversubscription_checked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name_plural = "host capacity"
        ordering = ("host__name",)
        constraints = [
            models.CheckConstraint(
                condition=none_negative(
                    "committed_memory_bytes",
                    "committed_vcpus",
                    "failover_memory_bytes",
                    "failover_vcpus",
                    "in_flight_memory_bytes",
                    "in_flight_vcpus",
                    "allocated_memory_bytes",
                    "allocated_vcpus",
                ),
                name="capacity_hostcapacity_not_negative",
            )
        ]

    def __str__(self) -> str:
        return str(self.host_id)


class Reservation(FollowedModel):
    """Capacity held on one host; a slot is a committed one (spec commitments, 2.2).

    Invariants: a slot belongs to a commitment and has a slot index unique in it; ``blocked_*`` is
    what the reservation takes from its hosts now and is counted in their ``HostCapacity``; a
    reservation without a target host blocks nothing; a slot on a host whose agent makes slots is
    ready once that one has made it. ``held_*`` is what a slot takes of network, disk I/O and GPUs
    of each of its hosts, as much of its flavor's as it blocks of its memory; a trigger sets it,
    whoever writes the row, and another keeps ``HostResource.reserved`` their sum. Writers:
    ``capacity.ledger`` alone.
    """

    uuid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    kind = models.CharField(max_length=16, choices=ReservationKind.choices)
    scheduling_domain = models.CharField(max_length=16, default="nova")
    zone = models.CharField(max_length=255, blank=True)
    flavor_group_name = models.CharField(max_length=255, blank=True)
    resource_name = models.CharField(
        max_length=255, blank=True, help_text="flavor the slot is placed as"
    )
    project_id = models.CharField(max_length=64, blank=True)
    domain_id = models.CharField(max_length=64, blank=True)
    memory_bytes = models.BigIntegerField()
    vcpus = models.BigIntegerField()
    blocked_memory_bytes = models.BigIntegerField(default=0)
    blocked_vcpus = models.BigIntegerField(default=0)
    target_host = models.ForeignKey(
        Host, null=True, blank=True, on_delete=models.PROTECT, related_name="targeted_reservations"
    )
    confirmed_host = models.ForeignKey(
        Host, null=True, blank=True, on_delete=models.PROTECT, related_name="reservations"
    )
    commitment = models.ForeignKey(
        "commitments.Commitment",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="slots",
        db_index=False,  # slot_unique begins with it
    )
    slot_index = models.PositiveIntegerField(null=True, blank=True)
    is_divided = models.BooleanField(
        default=False,
        db_default=False,
        help_text="cut off a larger slot, so that no flavor need be as large",
    )
    start_time = models.DateTimeField(null=True, blank=True)
    end_time = models.DateTimeField(null=True, blank=True)
    creator = models.CharField(max_length=64, blank=True)
    creator_request_id = models.CharField(max_length=255, blank=True)
    parent_generation = models.BigIntegerField(default=0)
    observed_parent_generation = models.BigIntegerField(default=0)
    generation = models.BigIntegerField(default=1)
    is_ready = models.BooleanField(null=True, default=None)
    ready_reason = models.CharField(max_length=64, choices=ReadyReason.choices, blank=True)
    ready_message = models.TextField(blank=True)
    ready_changed_at = models.DateTimeField(null=True, blank=True)
    decision = models.JSONField(
        null=True, blank=True, help_text="why this host: candidates, removals, runners-up"
    )
    vm_uuid = models.CharField(max_length=64, blank=True, help_text="VM of an in-flight placement")
    user_id = models.CharField(max_length=64, blank=True)
    intent = models.CharField(max_length=64, blank=True)
    source_host = models.ForeignKey(
        Host, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    placement_id = models.UUIDField(
        null=True, blank=True, db_index=True, help_text="shared by the rows of one placement"
    )
    held_network_bps = models.BigIntegerField(
        default=0, db_default=0, editable=False, help_text="bytes per second"
    )
    held_disk_io_bps = models.BigIntegerField(
        default=0, db_default=0, editable=False, help_text="bytes per second"
    )
    held_gpus = models.BigIntegerField(default=0, db_default=0, editable=False)

    class Meta:
        ordering = ("commitment_id", "slot_index", "id")
        indexes = [
            models.Index(fields=["vm_uuid"], name="capacity_reserv_vm_idx"),
            models.Index(
                fields=["zone", "kind", "flavor_group_name"], name="capacity_reserv_zone_idx"
            ),
            models.Index(
                fields=["project_id", "flavor_group_name"], name="capacity_reserv_project_idx"
            ),
            models.Index(
                fields=["target_host"],
                condition=Q(ready_reason__in=[ReadyReason.AWAITS_AGENT, ReadyReason.AGENT_FAILED]),
                name="capacity_reserv_agent_idx",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["commitment", "slot_index"], name="capacity_reservation_slot_unique"
            ),
            models.UniqueConstraint(
                fields=["vm_uuid", "target_host"],
                condition=Q(kind=ReservationKind.IN_FLIGHT),
                name="capacity_reservation_in_flight_unique",
            ),
            models.CheckConstraint(
                condition=~Q(kind=ReservationKind.IN_FLIGHT)
                | (
                    ~Q(vm_uuid="")
                    & Q(
                        target_host__isnull=False,
                        end_time__isnull=False,
                        placement_id__isnull=False,
                    )
                ),
                name="capacity_reservation_in_flight_complete",
            ),
            models.CheckConstraint(
                condition=OneOf("kind", ReservationKind.values),
                name="capacity_reservation_kind_known",
            ),
            models.CheckConstraint(
                condition=OneOf("scheduling_domain", SCHEDULING_DOMAINS),
                name="capacity_reservation_scheduling_domain_known",
            ),
            models.CheckConstraint(
                condition=OneOf("intent", STORED_INTENTS), name="capacity_reservation_intent_known"
            ),
            models.CheckConstraint(
                condition=none_negative(
                    "memory_bytes", "vcpus", "blocked_memory_bytes", "blocked_vcpus"
                ),
                name="capacity_reservation_not_negative",
            ),
            models.CheckConstraint(
                condition=(
                    Q(kind=ReservationKind.COMMITTED)
                    & Q(commitment__isnull=False)
                    & Q(slot_index__isnull=False)
                )
                | (~Q(kind=ReservationKind.COMMITTED) & Q(commitment__isnull=True)),
                name="capacity_reservation_slot_has_commitment",
            ),
            models.CheckConstraint(
                condition=Q(target_host__isnull=False)
                | Q(confirmed_host__isnull=False)
                | Q(blocked_memory_bytes=0, blocked_vcpus=0),
                name="capacity_reservation_block_has_host",
            ),
        ]

    @property
    def size(self) -> ResourceVector:
        """What it holds."""
        return ResourceVector(memory_bytes=self.memory_bytes, vcpus=self.vcpus)

    @property
    def blocked(self) -> ResourceVector:
        """What it takes from each of its hosts now."""
        return ResourceVector(memory_bytes=self.blocked_memory_bytes, vcpus=self.blocked_vcpus)

    @property
    def held(self) -> Needs:
        """What it takes of network, disk I/O and GPUs from each of its hosts now."""
        return Needs(self.held_network_bps, self.held_disk_io_bps, self.held_gpus)

    def __str__(self) -> str:
        if self.slot_index is not None:
            return f"slot {self.slot_index}"
        return str(self.uuid)


class ReservationAllocation(FollowedModel):
    """A VM in a reservation: expected (placed there) or confirmed (seen there).

    Several slots of a host may cover one VM together, each by a part: ``memory_bytes`` and
    ``vcpus`` are those of the part, and the rows of a VM in the slots of one host, which all have
    one state, add up to the VM (ADR 0017). In other reservations a row is the whole VM.

    A VM that was seen and is listed nowhere any more is expected again since ``missing_since``, so
    that its slot blocks the room that the host's allocation no longer shows.

    ``vm_host`` and ``validated_at`` are those of failover reservations, whose users run elsewhere.
    """

    reservation = models.ForeignKey(
        Reservation,
        on_delete=models.CASCADE,
        related_name="allocations",
        db_index=False,  # the constraint vm_unique begins with it
    )
    vm_uuid = models.CharField(max_length=64, db_index=True)
    state = models.CharField(max_length=16, choices=AllocationState.choices)
    memory_bytes = models.BigIntegerField()
    vcpus = models.BigIntegerField()
    since = models.DateTimeField()
    confirmed_host = models.ForeignKey(
        Host, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    confirmed_at = models.DateTimeField(null=True, blank=True)
    missing_since = models.DateTimeField(
        null=True, blank=True, help_text="when a VM that was seen was first listed nowhere"
    )
    vm_host = models.ForeignKey(
        Host,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
        help_text="host the VM ran on when it joined a failover reservation",
    )
    validated_at = models.DateTimeField(
        null=True, blank=True, help_text="when the scheduler last agreed to evacuate the VM here"
    )

    class Meta:
        ordering = ("reservation_id", "vm_uuid")
        indexes = [
            models.Index(
                fields=["since"],
                condition=Q(state=AllocationState.EXPECTED),
                name="capacity_reserv_expected_idx",
            )
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["reservation", "vm_host"],
                condition=Q(vm_host__isnull=False),  # others take no room in it
                name="capacity_reservationallocation_vm_host_unique",
            ),
            models.UniqueConstraint(
                fields=["reservation", "vm_uuid"], name="capacity_reservationallocation_vm_unique"
            ),
            models.CheckConstraint(
                condition=Q(
                    state=AllocationState.CONFIRMED,
                    confirmed_host__isnull=False,
                    confirmed_at__isnull=False,
                )
                | Q(state=AllocationState.EXPECTED, confirmed_host__isnull=True),
                name="capacity_reservationallocation_confirmed_has_host",
            ),
            models.CheckConstraint(
                condition=Q(memory_bytes__gte=0) & Q(vcpus__gte=0),
                name="capacity_reservationallocation_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(state=AllocationState.EXPECTED) | Q(missing_since__isnull=True),
                name="capacity_reservationallocation_missing_is_expected",
            ),
        ]

    @property
    def size(self) -> ResourceVector:
        """What of its VM is in the reservation."""
        return ResourceVector(memory_bytes=self.memory_bytes, vcpus=self.vcpus)

    def __str__(self) -> str:
        return self.vm_uuid


class LeavingRoom(models.Model):
    """Room of a slot that left a host whose agent has not said yet that it gave it back.

    Counted in ``HostCapacity.committed_*`` of the host while the agent makes slots, is not down and
    has the workload; what it holds of network, disk I/O and GPUs in ``HostResource.reserved``, by a
    trigger. Writers: ``capacity.ledger`` alone.
    """

    workload = models.OneToOneField(
        Workload, on_delete=models.PROTECT, related_name="+", help_text="what the agent removes"
    )
    host = models.ForeignKey(Host, on_delete=models.CASCADE, related_name="+")
    memory_bytes = models.BigIntegerField()
    vcpus = models.BigIntegerField()
    network_bps = models.BigIntegerField(default=0, db_default=0, help_text="bytes per second")
    disk_io_bps = models.BigIntegerField(default=0, db_default=0, help_text="bytes per second")
    gpus = models.BigIntegerField(default=0, db_default=0)
    since = models.DateTimeField(db_default=Now())
    commitment_key = models.BigIntegerField(
        null=True, blank=True, help_text="key of the commitment whose slot it was"
    )
    left_xid = models.BigIntegerField(
        db_default=CurrentTransactionID(),
        editable=False,
        help_text="the transaction in which the slot left",
    )

    class Meta:
        ordering = ("id",)
        constraints = [
            models.CheckConstraint(
                condition=Q(memory_bytes__gte=0, vcpus__gte=0),
                name="capacity_leavingroom_not_negative",
            ),
            models.CheckConstraint(
                condition=Q(network_bps__gte=0, disk_io_bps__gte=0, gpus__gte=0),
                name="capacity_leavingroom_others_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return str(self.workload_id)
