from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.urls import get_resolver
from django.urls.resolvers import URLPattern, URLResolver

from commitments.api.views import LiquidView, unknown_path
from config import urls
from tests.openapi_documents import document_of

OPERATION_PATHS = {"/livez", "/healthz", "/readyz", "/statusz", "/metrics"}


def patterns_below(resolver: URLResolver, prefix: str = "/") -> Iterator[tuple[str, URLPattern]]:
    for pattern in resolver.url_patterns:
        here = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from patterns_below(pattern, here)
        else:
            yield here, pattern


def as_template(route: str) -> str:
    """Return a Django route as an OpenAPI path template."""
    named = re.sub(r"\(\?P<(\w+)>[^)]*\)", r"{\1}", route)
    named = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", named)
    return named.replace("^", "").removesuffix("$")


def served_paths() -> dict[str, URLPattern]:
    """Return the paths of the LIQUID API and of the probes, from the URL map."""
    return {
        as_template(route): pattern
        for route, pattern in patterns_below(get_resolver(urls.__name__))
        if (route.startswith("/commitments/") and pattern.callback is not unknown_path)
        or as_template(route) in OPERATION_PATHS
    }


def test_every_url_of_the_liquid_api_and_every_probe_is_documented_and_nothing_else() -> None:
    served = served_paths()
    assert len(served) == 10
    assert set(document_of("liquid")["paths"]) == set(served)


@pytest.mark.parametrize("path", sorted(document_of("liquid")["paths"]))
def test_documented_methods_are_those_that_the_view_takes(path: str) -> None:
    view = getattr(served_paths()[path].callback, "view_class", None)
    allowed = view.http_method_names if view is not None else ["get"]
    assert view is None or issubclass(view, LiquidView)
    assert set(document_of("liquid")["paths"][path]) == set(allowed)
