"""Paths of the lists: no trailing slash, no redirect."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern, path

from console.api.capacity import (
    DecisionViewSet,
    FlavorGroupViewSet,
    GroupCapacityViewSet,
    ReservationViewSet,
)
from console.api.commitments import (
    CommitmentEventViewSet,
    CommitmentViewSet,
    CompactionRunViewSet,
    RefusalViewSet,
    SyncRunViewSet,
)
from console.api.failover import (
    FailoverEventViewSet,
    FailoverReservationViewSet,
    FailoverRunViewSet,
    UncoveredVMViewSet,
)
from console.api.history import CapacityHistoryViewSet, HostHistoryViewSet
from console.api.host_rows import ROWS_OF_HOSTS
from console.api.hosts import (
    DomainViewSet,
    FeedPassViewSet,
    FlavorViewSet,
    HostViewSet,
    ProjectViewSet,
    VMViewSet,
)
from console.api.journal import AuditEntryViewSet
from console.api.views import ReadViewSet

LISTS: Final[tuple[type[ReadViewSet], ...]] = (
    HostViewSet,
    VMViewSet,
    FlavorViewSet,
    FlavorGroupViewSet,
    ProjectViewSet,
    DomainViewSet,
    GroupCapacityViewSet,
    CapacityHistoryViewSet,
    HostHistoryViewSet,
    CommitmentViewSet,
    CommitmentEventViewSet,
    RefusalViewSet,
    ReservationViewSet,
    DecisionViewSet,
    FailoverReservationViewSet,
    UncoveredVMViewSet,
    FailoverRunViewSet,
    FailoverEventViewSet,
    SyncRunViewSet,
    CompactionRunViewSet,
    FeedPassViewSet,
    AuditEntryViewSet,
)
PREFIX: Final = "/api/v1/"


def _paths(view: type[ReadViewSet]) -> tuple[URLPattern, URLPattern]:
    name = view.path_label.removeprefix(PREFIX)
    return (
        path(name, view.as_view({"get": "list"}), name=name),
        path(
            f"{name}/<{view.key_type()}:key>",
            view.as_view({"get": "retrieve", **view.written}),
            name=f"{name}-one",
        ),
    )


app_name = "operator"
urlpatterns: list[URLPattern] = [pattern for view in LISTS for pattern in _paths(view)]
urlpatterns += [
    path(
        view.path_label.removeprefix(PREFIX).replace("{name}", "<str:name>"),
        view.as_view({"get": "list"}),
    )
    for view in ROWS_OF_HOSTS
]
