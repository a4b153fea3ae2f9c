"""Paths of our own API about Placement: no trailing slash, no redirect."""

from __future__ import annotations

from django.urls import path

from placement.api.history import HistoryView, ProviderPagesView
from placement.api.operator import ExplainCandidatesView, SimulateCandidatesView

app_name = "placement-operator"
urlpatterns = [
    path("history", HistoryView.as_view(), name="history"),
    path("providers", ProviderPagesView.as_view(), name="providers"),
    path("explain", ExplainCandidatesView.as_view(), name="explain"),
    path("simulate", SimulateCandidatesView.as_view(), name="simulate"),
]
