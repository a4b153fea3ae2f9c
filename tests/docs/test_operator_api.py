"""The page of the operator API against the server: its table and its examples."""

from __future__ import annotations

import json
import re

import pytest
from django.conf import settings as django_settings
from django.db import connection
from django.test import Client

from console.api.urls import LISTS
from console.api.views import ReadViewSet
from tests.console.api.conftest import key_field
from tests.docs.tour import ROOT
from tests.factories import make_domain

PAGE = (ROOT / "docs" / "api" / "operator.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(
    r'```bash\ncurl -s "\$HEADROOM([^"]+)" -H "X-Auth-Token: \$TOKEN"\n```\n\n```json\n(.*?)```',
    re.DOTALL,
)
EXAMPLES = EXAMPLE.findall(PAGE)


def table_row(view: type[ReadViewSet]) -> str:
    usual = view.default_ordering
    others = [name for name in view.orderings if name != usual.removeprefix("-")]
    orders = ", ".join(f"`{name}`" for name in (usual, *others))
    filters = ", ".join(f"`{name}`" for name in view.filterset_class.base_filters)
    path = view.path_label.removeprefix("/api/v1/")
    return f"| `{path}` | `{key_field(view)}` | {orders} | {filters} |"


def test_table_has_every_list_with_its_orders_and_filters() -> None:
    table = PAGE[PAGE.index("| list | key |") :].partition("\n\n")[0].splitlines()
    assert table[2:] == [table_row(view) for view in LISTS]


def test_every_example_is_found() -> None:
    assert len(EXAMPLES) == PAGE.count("```bash") == 4


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "answer"), EXAMPLES)
def test_example_is_what_the_server_answers(settings: object, path: str, answer: str) -> None:
    environment = django_settings.HEADROOM.model_copy(update={"auth": "noauth"})
    settings.HEADROOM = environment  # type: ignore[attr-defined]  # pytest-django's settings
    make_domain("d1", "blue")
    make_domain("d2", "green")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE hosts_domain SET is_enabled = false WHERE openstack_id = 'd2'")
        cursor.execute("UPDATE hosts_domain SET created_at = '2026-03-01T12:00:00Z'")
    told = Client().get(path).json()
    for row in told.get("items", [told]):
        if "updated_at" in row:
            row["updated_at"] = "2026-03-01T12:00:00Z"
    if "request_id" in told:
        told["request_id"] = "..."
    assert told == json.loads(answer)
