"""The theme's templates, for Alpine's build that evaluates no text as code.

That build (``static/vendor/alpine-csp/``) stands in for the theme's own. It reads attributes with
a parser of its own, which knows neither statements nor globals. The few places where the theme
uses them are replaced as its templates are loaded, by what ``static/headroom/page.js`` has. A
theme that has other text there does not load: look again. Rows that are sorted by hand
(``ordering_field``) would need the theme's ``sortRecords`` there too; we have none.
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
REPLACED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "unfold/layouts/skeleton.html": (
        ("unfold/js/alpine/alpine.js", "vendor/alpine-csp/alpine.js"),
        (f"({_STORED} !== null) ? ({_STORED} == '1') : true", "$page.sidebarIsOpen()"),
        ("activeTab = {% if opts %}getCurrentTab()", "[activeTab = {% if opts %}$page.tab()"),
        ("{% else %}''{% endif %};", "{% else %}''{% endif %},"),
        (f"value => {_KEPT}, value ? '1' : '0'));", "$page.keepSidebar)]"),
    ),
    "unfold/helpers/welcomemsg.html": (
        (f" {_KEPT}, sidebarDesktopOpen ? '1' : '0');", ""),  # is watched anyway
    ),
    "unfold/helpers/search.html": (
        (
            "openSearchResults = true; currentIndex = 0",
            "[openSearchResults = true, currentIndex = 0]",
        ),
        (
            (
                "openSearchResults = false; if ($refs.searchInput.value === '') "
                "{ $refs.searchInput.blur() } else { $refs.searchInput.value = '' }"
            ),
            "[openSearchResults = false, $page.clear($refs.searchInput)]",
        ),
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
