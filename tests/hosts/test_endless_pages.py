"""Clouds whose pages never end: reading them does."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from hosts.clients.listing import CloudUnreachable, pages, pages_by_offset
from hosts.feed.lists import _identity

MANY = 50


class CircularCloud:
    """Says of two pages that each follows the other, whatever is asked for."""

    region_name = "circle"

    def __init__(self) -> None:
        self.asked = 0

    def get(self, service: str, path: str) -> Any:
        del service
        self.asked += 1
        number = self.asked % 2
        return {"things": [{"id": f"id-{number}"}], "links": {"next": f"/things?page={number}"}}

    def has(self, service: str) -> bool:
        return bool(service)


def test_links_that_lead_in_a_circle_are_an_error() -> None:
    with pytest.raises(CloudUnreachable, match="follow"):
        list(islice(_identity(CircularCloud(), "things"), MANY))


def test_pages_that_come_again_are_the_end() -> None:
    for read in (pages, pages_by_offset):
        found = list(islice(read(CircularCloud(), "compute", "/things", "things"), MANY))
        assert len(found) == 2
