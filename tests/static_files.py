"""Static files are listed once for all test clients, each of which makes the middleware anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile


@contextmanager
def listed_once() -> Iterator[None]:
    """Share what the finders find: to look takes eight times as long as the rest of a request."""
    known: dict[tuple[str, int | None], dict[str, StaticFile]] = {}
    look = WhiteNoiseMiddleware.add_files_from_finders

    def add(middleware: WhiteNoiseMiddleware) -> None:
        key = (middleware.static_prefix, middleware.max_age)
        if key not in known:
            look(middleware)
            known[key] = middleware.files
        middleware.files = known[key]

    with patch.object(WhiteNoiseMiddleware, "add_files_from_finders", add):
        yield
