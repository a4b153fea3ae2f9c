"""Paths of our own API about scheduling: no trailing slash, no redirect."""

from __future__ import annotations

from django.urls import path

from capacity.api.explain import ExplainView

app_name = "scheduling"
urlpatterns = [path("explain", ExplainView.as_view(), name="explain")]
