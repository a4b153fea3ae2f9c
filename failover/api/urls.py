"""Paths of our own API about failover: no trailing slash, no redirect."""

from __future__ import annotations

from django.urls import path

from failover.api.views import DrainCheckView, SimulationView

app_name = "failover"
urlpatterns = [
    path("simulations", SimulationView.as_view(), name="simulations"),
    path("drain-check", DrainCheckView.as_view(), name="drain_check"),
]
