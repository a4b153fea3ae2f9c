"""The version document, and paths that do not exist (spec placement, 2.1, 2.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.http import HttpResponse

from placement.api.base import PlacementView
from placement.domain.errors import NotFound
from placement.domain.microversion import MAX_VERSION, MIN_VERSION

VERSIONS: Final = {
    "versions": [
        {
            "id": "v1.0",
            "max_version": MAX_VERSION,
            "min_version": MIN_VERSION,
            "status": "CURRENT",
            "links": [{"rel": "self", "href": ""}],
        }
    ]
}


class RootView(PlacementView):
    """``GET /``: which versions there are. Needs no token."""

    pattern = "/"
    is_public = True

    def get(self) -> HttpResponse:
        """Return the version document."""
        return self.answer(VERSIONS)


class UnknownPathView(PlacementView):
    """Every other path: 404 for callers with a token."""

    def _handler(self) -> Callable[..., HttpResponse]:
        return self.refuse

    def refuse(self, **kwargs: Any) -> HttpResponse:  # Any: parts of the path
        """Answer that there is no such path.

        Raises:
            NotFound: always.
        """
        raise NotFound
