"""Paths of our own API about failover: no trailing slash, no redirect."""

from __future__ import annotations

from django.urls import path

from failover.api.views import (
    DrainCheckView,
    DrillsView,
    RebalancesView,
    ReplansView,
    ShadowPlansView,
    SimulationView,
)

app_name = "failover"
urlpatterns = [
    path("simulations", SimulationView.as_view(), name="simulations"),
    path("drain-check", DrainCheckView.as_view(), name="drain_check"),
    path("drills", DrillsView.as_view(), name="drills"),
    path("shadow-plans", ShadowPlansView.as_view(), name="shadow_plans"),
    path("rebalances", RebalancesView.as_view(), name="rebalances"),
    path("replans", ReplansView.as_view(), name="replans"),
]
