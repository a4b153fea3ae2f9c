"""Paths of agents: no trailing slash, no redirect."""

from __future__ import annotations

from django.urls import path

from hosts.agents.observed_views import InstancesView, StatsView
from hosts.agents.views import EnrolView, HeartbeatView, KeysView, KeyView, ResourcesView
from hosts.agents.workload_views import (
    DeletedView,
    ReservationsView,
    ReservationView,
    ResultView,
)

app_name = "agents"
urlpatterns = [
    path("enrol", EnrolView.as_view(), name="enrol"),
    path("<uuid:host_id>/heartbeat", HeartbeatView.as_view(), name="heartbeat"),
    path("<uuid:host_id>/keys", KeysView.as_view(), name="keys"),
    path("<uuid:host_id>/keys/<str:kid>", KeyView.as_view(), name="key"),
    path("<uuid:host_id>/reservations", ReservationsView.as_view(), name="reservations"),
    path("<uuid:host_id>/reservations/<str:gwid>", ReservationView.as_view(), name="reservation"),
    path("<uuid:host_id>/reservations/<str:gwid>/result", ResultView.as_view(), name="result"),
    path("<uuid:host_id>/reservations/<str:gwid>/deleted", DeletedView.as_view(), name="deleted"),
    path("<uuid:host_id>/instances", InstancesView.as_view(), name="instances"),
    path("<uuid:host_id>/stats", StatsView.as_view(), name="stats"),
    path("<uuid:host_id>/resources", ResourcesView.as_view(), name="resources"),
]
