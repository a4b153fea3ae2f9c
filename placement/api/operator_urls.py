"""Paths of our own API about Placement: no trailing slash, no redirect."""

from __future__ import annotations

from django.urls import path

from placement.api.operator import ExplainCandidatesView, SimulateCandidatesView

app_name = "placement-operator"
urlpatterns = [
    path("explain", ExplainCandidatesView.as_view(), name="explain"),
    path("simulate", SimulateCandidatesView.as_view(), name="simulate"),
]
