"""The admin site: the theme's, with a frame that each page makes at little cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from unfold.sites import UnfoldAdminSite

from console.theme import sidebar, tab_sets

if TYPE_CHECKING:
    ThemeSite = AdminSite
else:
    ThemeSite = UnfoldAdminSite


class OperatorSite(ThemeSite):
    """The admin site.

    The theme copies its settings in depth for each page, and looks whether each tab belongs to
    each entry of the sidebar, by addresses that it resolves again and again.
    """

    def get_sidebar_list(self, request: HttpRequest) -> list[dict[str, Any]]:
        """Return the sidebar, its headings with their entries."""
        return sidebar(request)

    def get_tabs_list(self, request: HttpRequest) -> list[dict[str, Any]]:
        """Return the tabs of the lists."""
        return tab_sets(request)

    def get_app_list(self, request: HttpRequest, app_label: str | None = None) -> Any:
        """Return the applications with their models: each page is given them, few show them."""
        return SimpleLazyObject(lambda: super(OperatorSite, self).get_app_list(request, app_label))
