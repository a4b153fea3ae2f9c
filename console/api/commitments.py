"""``/api/v1``: commitments, what happened to them, refused requests, runs of the syncer."""

from __future__ import annotations

from django.db.models import QuerySet
from rest_framework import serializers

from commitments.domain.statuses import ResourceType
from commitments.models import (
    RESOURCE_TYPES,
    STATUSES,
    Commitment,
    CommitmentEvent,
    CompactionOutcome,
    CompactionRun,
    Condition,
    RefusedChange,
    SyncOutcome,
    SyncRun,
)
from console.api.filters import (
    BeforeFilter,
    CreatedFilters,
    FlagFilter,
    SinceFilter,
    StartedFilters,
    TextFilter,
    WordFilter,
)
from console.api.names import domain_name, project_name
from console.api.views import LogViewSet, ReadViewSet, RowSerializer


class CommitmentSerializer(RowSerializer):
    """A promise to a project; amounts stand in the field of the resource type, the other is null.

    ``ready_*`` is the condition: whether it is fulfilled, and what it waits for.
    """

    uuid = serializers.CharField(source="commitment_uuid")
    project_name = serializers.CharField(allow_null=True)
    domain_name = serializers.CharField(allow_null=True)
    requested_memory_bytes = serializers.SerializerMethodField()
    requested_vcpus = serializers.SerializerMethodField()
    accepted_memory_bytes = serializers.SerializerMethodField()
    accepted_vcpus = serializers.SerializerMethodField()
    is_ready = serializers.BooleanField(source="ready_status", allow_null=True)

    class Meta:
        model = Commitment
        fields = (
            "uuid",
            "project_id",
            "project_name",
            "domain_id",
            "domain_name",
            "zone",
            "flavor_group_name",
            "resource_type",
            "state",
            "requested_memory_bytes",
            "requested_vcpus",
            "accepted_memory_bytes",
            "accepted_vcpus",
            "used_memory_bytes",
            "used_vcpus",
            "start_time",
            "end_time",
            "confirm_by",
            "confirmed_at",
            "accepted_at",
            "is_ready",
            "ready_reason",
            "ready_message",
            "ready_changed_at",
            "status_summary",
            "next_reconcile_at",
            "last_usage_reconcile_at",
            "origin",
            "limes_id",
            "missing_since",
            "creator_request_id",
            "generation",
            "created_at",
            "updated_at",
        )

    def get_requested_memory_bytes(self, row: Commitment) -> int | None:
        """Return the memory that was asked for."""
        return row.requested_amount if _is_memory(row) else None

    def get_requested_vcpus(self, row: Commitment) -> int | None:
        """Return the vCPUs that were asked for."""
        return None if _is_memory(row) else row.requested_amount

    def get_accepted_memory_bytes(self, row: Commitment) -> int | None:
        """Return the memory that is promised."""
        return row.accepted_amount if _is_memory(row) else None

    def get_accepted_vcpus(self, row: Commitment) -> int | None:
        """Return the vCPUs that are promised."""
        return None if _is_memory(row) else row.accepted_amount


class CommitmentFilters(CreatedFilters):
    """Filters of commitments."""

    uuid = TextFilter(field_name="commitment_uuid")
    project_id = TextFilter()
    domain_id = TextFilter()
    zone = TextFilter()
    flavor_group_name = TextFilter()
    resource_type = WordFilter(choices=RESOURCE_TYPES)
    state = WordFilter(choices=STATUSES)
    is_ready = FlagFilter(field_name="ready_status")
    ready_reason = WordFilter(choices=Condition.choices)
    starts_since = SinceFilter(field_name="start_time")
    starts_before = BeforeFilter(field_name="start_time")
    ends_since = SinceFilter(field_name="end_time")
    ends_before = BeforeFilter(field_name="end_time")


class CommitmentViewSet(ReadViewSet):
    """Commitments in every state."""

    path_label = "/api/v1/commitments"
    queryset = Commitment.objects.defer("limes_record", "accepted_spec").annotate(
        project_name=project_name(), domain_name=domain_name()
    )
    serializer_class = CommitmentSerializer
    filterset_class = CommitmentFilters
    lookup_field = "commitment_uuid"
    orderings = {"uuid": ("commitment_uuid",), "created": ("id",)}
    default_ordering = "uuid"


class CommitmentEventSerializer(RowSerializer):
    """What happened to a commitment: who, when, before, after, why."""

    class Meta:
        model = CommitmentEvent
        fields = (
            "id",
            "created_at",
            "commitment_uuid",
            "action",
            "actor",
            "request_id",
            "reason",
            "before",
            "after",
            "explanation",
        )


class CommitmentEventFilters(CreatedFilters):
    """Filters of events."""

    commitment_uuid = TextFilter()
    action = TextFilter()
    actor = TextFilter()
    request_id = TextFilter()


class CommitmentEventViewSet(LogViewSet):
    """What happened to commitments, also to those that are gone; the newest come first."""

    path_label = "/api/v1/commitment-events"
    queryset = CommitmentEvent.objects.all()
    serializer_class = CommitmentEventSerializer
    filterset_class = CommitmentEventFilters


class AskedSerializer(serializers.Serializer[object]):
    """One commitment of a request, in declared units."""

    commitment = serializers.CharField()
    project = serializers.CharField()
    resource = serializers.CharField()
    old_status = serializers.CharField(allow_null=True)
    new_status = serializers.CharField(allow_null=True)
    amount_units = serializers.IntegerField()


class RefusedSerializer(serializers.Serializer[object]):
    """Why one commitment of a request was refused, and what would have fitted."""

    commitment = serializers.CharField()
    message = serializers.CharField()
    advice = serializers.JSONField()


class RefusalSerializer(RowSerializer):
    """A change request of Limes that was refused: who asked for what, and why not."""

    asked = AskedSerializer(many=True)
    refused = RefusedSerializer(many=True)

    class Meta:
        model = RefusedChange
        fields = (
            "id",
            "created_at",
            "request_id",
            "actor",
            "zone",
            "reason",
            "is_timeout",
            "retry_at",
            "asked",
            "refused",
        )


class RefusalFilters(CreatedFilters):
    """Filters of refusals."""

    request_id = TextFilter()
    actor = TextFilter()
    zone = TextFilter()
    is_timeout = FlagFilter()
    commitment_uuid = TextFilter(method="of_commitment")
    project_id = TextFilter(method="of_project")

    def of_commitment(
        self, rows: QuerySet[RefusedChange], _: str, uuid: str
    ) -> QuerySet[RefusedChange]:
        """Return the requests that a commitment was in."""
        return rows.filter(asked__contains=[{"commitment": uuid}])

    def of_project(
        self, rows: QuerySet[RefusedChange], _: str, project_id: str
    ) -> QuerySet[RefusedChange]:
        """Return the requests that had a commitment of a project."""
        return rows.filter(asked__contains=[{"project": project_id}])


class RefusalViewSet(LogViewSet):
    """Change requests that were refused; the newest come first."""

    path_label = "/api/v1/refusals"
    queryset = RefusedChange.objects.all()
    serializer_class = RefusalSerializer
    filterset_class = RefusalFilters


class SyncRunSerializer(RowSerializer):
    """A run of an importer or syncer; no outcome while it runs."""

    class Meta:
        model = SyncRun
        fields = (
            "id",
            "source",
            "started_at",
            "finished_at",
            "outcome",
            "counts",
            "error_code",
            "message",
            "shrink_accepted_by",
            "shrink_accepted_at",
        )


class SyncRunFilters(StartedFilters):
    """Filters of sync runs."""

    source = TextFilter()
    outcome = WordFilter(choices=SyncOutcome.choices)
    error_code = TextFilter()


class SyncRunViewSet(LogViewSet):
    """Runs of importers and of the syncer; the newest come first."""

    path_label = "/api/v1/sync-runs"
    queryset = SyncRun.objects.all()
    serializer_class = SyncRunSerializer
    filterset_class = SyncRunFilters


class CompactionRunSerializer(RowSerializer):
    """A run that freed hosts by moving empty slots; no outcome while it runs."""

    class Meta:
        model = CompactionRun
        fields = (
            "id",
            "zone",
            "started_at",
            "finished_at",
            "outcome",
            "hosts_planned",
            "hosts_freed",
            "slots_moved",
            "hosts_refused",
            "counts",
            "message",
            "actor",
            "request_id",
        )


class CompactionRunFilters(StartedFilters):
    """Filters of runs that free hosts."""

    zone = TextFilter()
    outcome = WordFilter(choices=CompactionOutcome.choices)
    request_id = TextFilter()


class CompactionRunViewSet(LogViewSet):
    """Runs that freed hosts; the newest come first."""

    path_label = "/api/v1/compaction-runs"
    queryset = CompactionRun.objects.all()
    serializer_class = CompactionRunSerializer
    filterset_class = CompactionRunFilters


def _is_memory(row: Commitment) -> bool:
    return row.resource_type == ResourceType.MEMORY.value
