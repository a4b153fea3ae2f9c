"""Paths of our own API about commitments: no trailing slash, no redirect."""

from __future__ import annotations

from django.urls import path

from commitments.api.focus import FocusView
from commitments.api.what_if import WhatIfView

app_name = "commitments"
urlpatterns = [
    path("what-if", WhatIfView.as_view(), name="what-if"),
    path("focus", FocusView.as_view(), name="focus"),
]
