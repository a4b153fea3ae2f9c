"""The candidate explorer: a query, what it finds, and which constraint removed whom."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from console.placement.candidate_page import candidate_page

QUERY_FIELD = "query"
PERMISSION = "placement.view_resourceprovider"
EXAMPLE = "resources=VCPU:2,MEMORY_MB:4096&required=!COMPUTE_STATUS_DISABLED"


def candidate_explorer_url(site: AdminSite) -> URLPattern:
    """Return the path of the explorer, for the admin of providers."""

    def explorer(request: HttpRequest) -> HttpResponse:
        if not request.user.has_perm(PERMISSION):
            raise PermissionDenied
        context = {
            **site.each_context(request),
            "title": "Candidate explorer",
            "page": candidate_page(request.GET.get(QUERY_FIELD, "")),
            "query_field": QUERY_FIELD,
            "example": EXAMPLE,
        }
        return TemplateResponse(request, "admin/candidate_page.html", context)

    return path(
        "candidates/", site.admin_view(explorer), name="placement_resourceprovider_candidates"
    )
