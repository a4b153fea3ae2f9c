"""What every zone of these tests has: the domain and the project of its VMs are known."""

from __future__ import annotations

import pytest

from tests.factories import make_domain, make_project


@pytest.fixture(autouse=True)
def _known_project(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("django_db")
    if marker is not None:
        is_real = marker.kwargs.get("transaction", False)
        request.getfixturevalue("transactional_db" if is_real else "db")
        make_domain()
        make_project()
        make_project("p")
