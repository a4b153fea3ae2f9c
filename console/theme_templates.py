"""The theme's templates, for Alpine's build that evaluates no text as code, and screen readers.

That build (``static/vendor/alpine-csp/``) stands in for the theme's own. It reads attributes with
a parser of its own, which knows neither statements nor globals. The few places where the theme
uses them are replaced as its templates are loaded, by what ``static/headroom/page.js`` has. A
theme that has other text there does not load: look again. Rows that are sorted by hand
(``ordering_field``) would need the theme's ``sortRecords`` there too; we have none.

One text is replaced for what it says: an empty list invites to create rows that only the system
writes.

Others name the main part of a page and its menus for screen readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from django.core.exceptions import ImproperlyConfigured
from django.template import Origin
from django.template.loaders import app_directories

THEME: Final = "/unfold/templates/"
_STORED: Final = "localStorage.getItem('sidebarDesktopOpen')"
_KEPT: Final = "localStorage.setItem('sidebarDesktopOpen'"
_LINE: Final = '<span class="block bg-base-200 h-5 mx-3 w-px dark:bg-base-700"></span>'
_SEARCH: Final = (
    '<a class="hr-find-link" href="{% url "headroom_search" %}" aria-label="Search">'
    '<span class="material-symbols-outlined" aria-hidden="true">search</span></a>'
)

_EMPTY_SAID: Final = (
    '{% trans "This page yielded into no results. Create a new item or reset your filters." %}'
)
_EMPTY_SAYS: Final = (
    "{% if cl.query or cl.has_active_filters %}No row fits this search and these filters."
    "{% elif cl.model_admin.empty_note %}{{ cl.model_admin.empty_note }}"
    "{% else %}There is no row yet.{% endif %}"
)
_NAMED: Final = 'aria-label="Show or hide the menu"'
_ACCOUNT: Final = 'x-on:click="openUserLinks = !openUserLinks"'
_SKIP: Final = '<a class="hr-skip" href="#content">Skip to the content</a>'
_PAGE: Final = '<div id="page" class='
#: The first letter of a heading becomes a capital, but not that of vCPUs.
_HEADING: Final = "{{ header.text|capfirst }}"
_OUR_HEADING: Final = (
    '{% if header.text|slice:":5" == "vCPUs" %}{{ header.text }}'
    "{% else %}{{ header.text|capfirst }}{% endif %}"
)


REPLACED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "unfold/helpers/empty_results.html": (
        (
            _EMPTY_SAID,
            _EMPTY_SAYS,
        ),
        ("{% if cl.has_filters or cl.query %}", "{% if cl.has_active_filters or cl.query %}"),
    ),
    "unfold/layouts/skeleton.html": (
        ("unfold/js/alpine/alpine.js", "vendor/alpine-csp/alpine.js"),
        (f"({_STORED} !== null) ? ({_STORED} == '1') : true", "$page.sidebarIsOpen()"),
        ("activeTab = {% if opts %}getCurrentTab()", "[activeTab = {% if opts %}$page.tab()"),
        ("{% else %}''{% endif %};", "{% else %}''{% endif %},"),
        (f"value => {_KEPT}, value ? '1' : '0'));", "$page.keepSidebar)]"),
    ),
    "unfold/helpers/welcomemsg.html": (
        (
            f" {_KEPT}, sidebarDesktopOpen ? '1' : '0');\"",
            f'" {_NAMED}',
        ),  # is watched anyway
        (
            'sidebarMobileOpen = !sidebarMobileOpen"',
            f'sidebarMobileOpen = !sidebarMobileOpen" {_NAMED}',
        ),
        (_LINE, _SEARCH + _LINE),
    ),
    "admin/base.html": (
        ('<div id="main" class=', '<div id="main" role="main" class='),
        (_PAGE, _SKIP + _PAGE),
    ),
    "unfold/helpers/navigation_user.html": (
        (
            _ACCOUNT,
            f'aria-label="{{{{ user.get_username }}}}: your account" {_ACCOUNT}',
        ),
    ),
    "unfold/helpers/navigation.html": (
        (
            '<nav id="nav-sidebar-inner" class=',
            '<nav id="nav-sidebar-inner" aria-label="Menu" class=',
        ),
    ),
    "unfold/helpers/app_list.html": (
        ("data-simplebar>", 'data-simplebar data-simplebar-aria-label="Entries of the menu">'),
    ),
    "unfold/helpers/tab_items.html": (
        ('<nav id="tabs-items" class=', '<nav id="tabs-items" aria-label="Lists" class='),
        (
            '<nav id="tabs-dropdown" class=',
            '<nav id="tabs-dropdown" aria-label="More lists" class=',
        ),
    ),
    "unfold/helpers/change_list_headers.html": tuple(
        (start + _HEADING, start + _OUR_HEADING)
        for start in (
            '<a href="{{ header.url_primary }}">\n' + " " * 32,
            "<span>\n" + " " * 36,
        )
    ),
    "unfold/helpers/command.html": (
        (
            "if (!$event.metaKey && !$event.ctrlKey) selectItem",
            "!$event.metaKey && !$event.ctrlKey && selectItem",
        ),
    ),
    "admin/change_form.html": (
        (
            (
                "activeTab && activeTab !== 'general' ? window.location.pathname + "
                "window.location.search + '#' + activeTab : window.location.pathname + "
                "window.location.search"
            ),
            "$page.address(activeTab)",
        ),
    ),
}
"""Template of the theme to pairs: text there, and what stands for it."""


class Loader(app_directories.Loader):
    """Finds templates in applications, and replaces text in the theme's."""

    def get_contents(self, origin: Origin) -> str:
        """Return the text of a template.

        Raises:
            ImproperlyConfigured: the theme's text is another than was replaced.
        """
        contents: str = super().get_contents(origin)
        if THEME not in str(origin.name):
            return contents
        for theirs, ours in REPLACED.get(str(origin.template_name), ()):
            if contents.count(theirs) != 1:
                raise ImproperlyConfigured(f"{origin.name} has not once {theirs!r}")
            contents = contents.replace(theirs, ours)
        return contents
