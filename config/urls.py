"""The URL map: each app brings its own, this page only mounts them."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.generic import RedirectView

from capacity.api.admission import CheckAdmissionView
from capacity.api.offboarding import OffboardingView
from commitments.api.evict import EvictView
from commitments.api.views import unknown_path
from console.api.document import DocsView, SchemaView
from console.api.views import UnknownPathView
from console.commitments.api import CommitmentExplanationView
from failover.api.views import SimulationView
from hosts.agents.counters import CountersView
from hosts.agents.order_views import (
    CommandView,
    DecommissionReservationView,
    DecommissionView,
    FenceView,
    ModeView,
    OnboardView,
)
from hosts.agents.views import ReportView
from journal.views import livez, metrics, readyz, statusz
from placement.api.root import RootView

urlpatterns: list[URLPattern | URLResolver] = [
    path("favicon.ico", RedirectView.as_view(url=f"{settings.STATIC_URL}headroom/icon.svg")),
    path("", RedirectView.as_view(url="/admin/"), name="home"),
    path("admin/", include("console.urls")),
    path("admin/", admin.site.urls),
    path("livez", livez, name="livez"),
    path("healthz", livez, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("statusz", statusz, name="statusz"),
    path("metrics", metrics, name="metrics"),
    path("commitments/", include("commitments.api.urls")),
    re_path(r"^commitments$", unknown_path),
    path("placement/", include("placement.api.urls")),
    path("placement", RootView.as_view()),
    path("scheduler/", include("capacity.api.urls")),
    path("api/v1/commitments/", include("commitments.api.operator_urls")),
    path("api/v1/failover/", include("failover.api.urls")),
    path("api/v1/placement/", include("placement.api.operator_urls")),
    path("api/v1/scheduling/", include("capacity.api.operator_urls")),
    path(
        "api/v1/explanations/commitments/<str:commitment_uuid>", CommitmentExplanationView.as_view()
    ),
    path("hosts/v1/", include("hosts.agents.urls")),
    path("api/v1/hosts/<str:name>/resources", ReportView.as_view(), name="host-resources"),
    path("api/v1/hosts/<str:name>/mode", ModeView.as_view(), name="host-mode"),
    path("api/v1/hosts/<str:name>/evict", EvictView.as_view(), name="host-evict"),
    path("api/v1/hosts/<str:name>/onboard", OnboardView.as_view(), name="host-onboard"),
    path("api/v1/hosts/<str:name>/fence", FenceView.as_view(), name="host-fence"),
    path("api/v1/hosts/<str:name>/commands", CommandView.as_view(), name="host-commands"),
    path("api/v1/hosts/<str:name>/offboarding", OffboardingView.as_view()),
    path("api/v1/hosts/<str:name>/counters", CountersView.as_view(), name="host-counters"),
    path(
        "api/v1/hosts/<str:name>/check-admission",
        CheckAdmissionView.as_view(),
        name="host-check-admission",
    ),
    path(
        "api/v1/hosts/<str:name>/reservations/<str:gwid>/decommission",
        DecommissionReservationView.as_view(),
    ),
    path("api/v1/hosts/<str:name>/decommission", DecommissionView.as_view()),
    path("api/v1/", include("console.api.urls")),
    path("api/schema", SchemaView.as_view(), name="api_schema"),
    path("api/docs", DocsView.as_view(), name="api_docs"),
    re_path(r"^api(?:/.*)?$", UnknownPathView.as_view()),
    path("failover/v1/simulations", SimulationView.as_view()),
]
if settings.HEADROOM.oidc.is_on:
    urlpatterns.append(path("oidc/", include("mozilla_django_oidc.urls")))
handler400 = "core.api.bad_request"
handler500 = "journal.views.plain_server_error"
