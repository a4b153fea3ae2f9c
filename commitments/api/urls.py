"""Paths of the LIQUID API: no trailing slash, no redirect (spec liquid, 1, 2.1)."""

from __future__ import annotations

from django.urls import path, re_path

from commitments.api import views

app_name = "liquid"
urlpatterns = [
    path("v1/info", views.InfoView.as_view(), name="info"),
    path("v1/report-capacity", views.ReportCapacityView.as_view(), name="report-capacity"),
    path("v1/change-commitments", views.ChangeCommitmentsView.as_view(), name="change-commitments"),
    re_path(
        r"^v1/projects/(?P<project_id>[^/]*)/report-usage$",
        views.ReportUsageView.as_view(),
        name="report-usage",
    ),
    re_path(r"^v1/projects/(?P<project_id>[^/]*)/quota$", views.QuotaView.as_view(), name="quota"),
    re_path(r"", views.unknown_path, name="unknown-path"),
]
