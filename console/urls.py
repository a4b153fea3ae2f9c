"""Addresses of the pages that answer questions, below ``/admin/``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpResponse
from django.urls import URLPattern, path

from console.failover.drain import drain_view
from console.failover.what_dies import drill_view
from console.hosts.map import map_view
from console.projects.pages import project_view, projects_view
from console.search import search_view
from console.sell.pages import sell_list_view, sell_view
from console.system.page import system_view
from console.vms.page import vm_view


def _page(route: str, view: Callable[..., HttpResponse], name: str) -> URLPattern:
    wrapped: Any = admin.site.admin_view(view)
    page: URLPattern = path(route, wrapped, name=name)
    return page


urlpatterns = [
    _page("find/", search_view, "headroom_search"),
    _page("sell/", sell_list_view, "headroom_sell"),
    _page("sell/<int:pk>/", sell_view, "headroom_sell_group"),
    _page("projects/", projects_view, "headroom_projects"),
    _page("projects/<int:pk>/", project_view, "headroom_project"),
    _page("system/", system_view, "headroom_system"),
    _page("hosts/<int:pk>/drain/", drain_view, "headroom_host_drain"),
    _page("drill/", drill_view, "headroom_drill"),
    _page("map/", map_view, "headroom_map"),
    _page("vms/<str:vm_uuid>/", vm_view, "headroom_vm"),
]
