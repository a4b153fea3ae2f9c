"""Paths of the Placement API: no trailing slash, no redirect (spec placement, 2.1)."""

from __future__ import annotations

from django.urls import URLPattern

app_name = "placement"
urlpatterns: list[URLPattern] = []
