"""``/api/v1/audit-entries``: who changed what, from what to what, and why."""

from __future__ import annotations

from console.api.filters import CreatedFilters, TextFilter
from console.api.views import LogViewSet, RowSerializer
from journal.models import AuditEntry


class AuditEntrySerializer(RowSerializer):
    """A change: who, what, before, after, why."""

    class Meta:
        model = AuditEntry
        fields = (
            "id",
            "created_at",
            "actor",
            "request_id",
            "action",
            "object_type",
            "object_id",
            "before",
            "after",
            "reason",
        )


class AuditEntryFilters(CreatedFilters):
    """Filters of audit entries."""

    actor = TextFilter()
    request_id = TextFilter()
    action = TextFilter()
    object_type = TextFilter()
    object_id = TextFilter()


class AuditEntryViewSet(LogViewSet):
    """What was changed; the newest come first."""

    path_label = "/api/v1/audit-entries"
    queryset = AuditEntry.objects.all()
    serializer_class = AuditEntrySerializer
    filterset_class = AuditEntryFilters
