"""Paths of the external scheduler: no trailing slash, no redirect (spec scheduling, 2)."""

from __future__ import annotations

from django.urls import path, re_path

from capacity.api import views

app_name = "scheduler"
urlpatterns = [
    path("nova/external", views.NovaExternalView.as_view(), name="nova-external"),
    re_path(r"", views.unknown_path, name="unknown-path"),
]
