"""Lists as files: the rows that are shown, for those who may see them, and nothing that runs."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.core.management import get_commands
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from capacity.models import HostCapacity
from console import exports
from hosts.models import Host
from journal.models import AuditEntry
from tests.factories import make_hosts

pytestmark = pytest.mark.django_db
MODELS = sorted(set(admin.site._registry) - {User, Group}, key=lambda model: model._meta.label)
HOSTS = reverse("admin:hosts_host_changelist")
FILE = reverse("admin:hosts_host_export_csv")
AUDIT_CSV = reverse("admin:journal_auditentry_export_csv")
AUDIT_JSON = reverse("admin:journal_auditentry_export_json")


def csv_rows(answer: Any) -> list[dict[str, str]]:
    assert answer.status_code == 200
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"].startswith("attachment; filename=")
    return list(csv.DictReader(io.StringIO(answer.content.decode(), newline="")))


def json_rows(answer: Any) -> list[dict[str, Any]]:
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")
    rows: list[dict[str, Any]] = json.loads(answer.content)
    return rows


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label_lower)
@pytest.mark.usefixtures("region")
def test_every_list_has_its_rows_in_both_files(admin_client: Client, model: Any) -> None:
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
    page = admin_client.get(reverse(f"{name}_changelist"))
    listed = [str(row.pk) for row in page.context["cl"].queryset]
    files = {kind: reverse(f"{name}_export_{kind}") for kind in ("csv", "json") if listed}
    assert {url.partition("?")[0] for _, url in page.context["cl"].exports} == set(files.values())
    if not listed:
        pytest.skip("has no rows")

    told = csv_rows(admin_client.get(files["csv"]))
    again = json_rows(admin_client.get(files["json"]))

    key = model._meta.pk.attname
    assert [row[key] for row in told] == [str(row[key]) for row in again] == listed
    assert list(told[0]) == list(again[0])
    assert not {"changed_xid", "password"} & set(told[0])


def test_nothing_is_imported() -> None:
    assert not apps.is_installed("import_export")
    assert not {"import", "export"} & set(get_commands())
    names = {str(url.name) for model in MODELS for url in admin.site.get_model_admin(model).urls}
    assert any("export_csv" in name for name in names)
    assert not [name for name in names if "import" in name]
    assert not Permission.objects.filter(codename__contains="import").exists()


def test_a_file_has_the_rows_that_are_asked_for_in_their_order(admin_client: Client) -> None:
    make_hosts(60)
    Host.objects.filter(name__in=["h7", "h8", "h9"]).update(zone="az-z")
    page = admin_client.get(HOSTS, {"zone": "az-z", "o": "-1", "p": "1"})
    ((label, link), _) = page.context["cl"].exports
    assert (label, "p=1" in link) == ("CSV", False)
    assert f'href="{link.replace("&", "&amp;")}"' in page.content.decode()
    shown = [row.name for row in page.context["cl"].result_list]
    assert sorted(shown) == ["h7", "h8", "h9"]
    assert [row["name"] for row in csv_rows(admin_client.get(link))] == shown
    assert len(csv_rows(admin_client.get(FILE))) == 60
    assert len(csv_rows(admin_client.get(FILE + "?p=2"))) == 60


def test_columns_carry_units_and_values_their_kind(admin_client: Client) -> None:
    make_hosts(1)
    (row,) = json_rows(admin_client.get(reverse("admin:hosts_host_export_json")))
    host = Host.objects.get()
    sizes = {name: value for name, value in row.items() if name.endswith(("_bytes", "_gib"))}
    for name in sizes.keys() - {field.name for field in Host._meta.concrete_fields}:
        of_room = sizes.pop(name)
        if not name.startswith("free_"):
            assert of_room == getattr(HostCapacity.objects.get(), name)
    assert sizes == {name: getattr(host, name) for name in sizes}
    assert sizes
    assert row["created_at"] == host.created_at.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("start", exports.FORMULA_STARTS)
def test_no_spreadsheet_takes_a_text_for_a_formula(admin_client: Client, start: str) -> None:
    text = f"{start}HYPERLINK(1)"
    facts = {"action": "x", "object_type": "y", "object_id": 'a",b', "after": [text]}
    AuditEntry.objects.create(actor=text, **facts)
    (row,) = [one for one in csv_rows(admin_client.get(AUDIT_CSV)) if one["object_type"] == "y"]
    assert row["actor"] == f"'{text}"
    assert row["object_id"] == 'a",b'
    assert json.loads(row["after"]) == [text]
    (told,) = [one for one in json_rows(admin_client.get(AUDIT_JSON)) if one["object_type"] == "y"]
    assert told["actor"] == text


def test_who_may_not_see_a_list_gets_no_file(client: Client) -> None:
    make_hosts(1)
    client.force_login(User.objects.create_user("somebody", is_staff=True))
    assert client.get(FILE).status_code == 403
    user = User.objects.create_user("viewer", is_staff=True)
    user.groups.add(Group.objects.get(name="viewer"))
    client.force_login(user)
    assert len(csv_rows(client.get(FILE))) == 1
    assert client.post(FILE).status_code == 405


def test_without_rows_there_is_no_link_and_users_have_none(admin_client: Client) -> None:
    assert "export.csv" not in admin_client.get(HOSTS).content.decode()
    users = admin_client.get(reverse("admin:auth_user_changelist"))
    assert users.context["cl"].result_count == 1
    assert "export" not in users.content.decode()


@pytest.mark.parametrize("query", ["colour=blue", "q=" + "a+" * 30])
def test_what_a_list_does_not_understand_gives_words(admin_client: Client, query: str) -> None:
    make_hosts(1)
    answer = admin_client.get(f"{reverse('admin:hosts_host_export_csv')}?{query}")
    assert (answer.status_code, answer["Content-Type"]) == (400, "text/plain; charset=utf-8")
    assert answer.content


@pytest.mark.parametrize(("limit", "most"), [("MOST_ROWS", 2), ("MOST_SECONDS", -1.0)])
def test_what_is_too_much_is_refused_with_words(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, limit: str, most: float
) -> None:
    make_hosts(3)
    monkeypatch.setattr(exports, limit, most)
    answer = admin_client.get(FILE + "?q=h", follow=True)
    assert answer.redirect_chain == [(f"{HOSTS}?q=h", 302)]
    assert "filter the list" in answer.content.decode()


def test_rows_that_the_database_does_not_read_in_time_are_refused() -> None:
    make_hosts(1)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 100")
        slow = Host.objects.extra(where=["pg_sleep(60) IS NOT NULL"])
        with pytest.raises(exports.ExportRefused, match="not read in time"):
            exports.exported(slow, "csv")


def test_a_file_of_many_rows_takes_as_many_statements_as_of_few(admin_client: Client) -> None:
    counts = []
    for prefix, count in (("a", 2), ("b", 40)):
        make_hosts(count, prefix=prefix)
        with CaptureQueriesContext(connection) as asked:
            csv_rows(admin_client.get(FILE))
        counts.append(len(asked))
    assert counts[0] == counts[1]
