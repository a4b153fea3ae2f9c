"""Odd query strings, object ids and form data in the admin: no 500."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from commitments.models import Commitment
from hosts.models import Host

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("region")]

MODELS = sorted(admin.site._registry, key=lambda model: model._meta.label)
HUGE, ODD = "9" * 23, "ä'\"\\%\u202e"
FILTER_JUNK = ("\x00", HUGE, ODD)
EVERYWHERE = ("p", "zone", "pk")
"""Parameters that are read alike for each list, or belong to other lists."""
SAMPLE = {Commitment, Host, get_user_model()}
"""Lists that stand for all in what does not depend on the columns of one."""
QUERIES = (
    "",
    "o=1.1.1.-1",
    "id__exact=abc",
    "id__in=1,x",
    "_facets=True",
)
QUERIES_OF_SAMPLE = (
    "p=-1",
    "p=abc",
    "p=99999999999999999999",
    "o=999",
    "o=-0.1.x",
    "all=",
    "q=%ff%fe",
    "q=%00",
    "nosuch__field=1",
    "_to_field=nosuch",
    "a=1&a=2&%=%",
)


@pytest.fixture
def operator() -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(get_user_model().objects.create_superuser("root", password="not-used"))
    return client


def filter_names(model: type[Model]) -> list[str]:
    """Return the query parameters that the list page of a model knows."""
    names = ["q", "o", *(EVERYWHERE if model in SAMPLE else ())]
    for entry in admin.site._registry[model].list_filter:
        if isinstance(entry, str):
            names += [entry, f"{entry}__exact", f"{entry}__gte", f"{entry}__isnull"]
        elif isinstance(entry, tuple):
            names += [str(entry[0]), f"{entry[0]}__exact", f"{entry[0]}__isnull"]
        else:
            name = getattr(entry, "parameter_name", "")
            names += [name] if name else []
    return names


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
def test_list_page_never_fails(operator: Client, model: type[Model]) -> None:
    page = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    queries = [*QUERIES, *(QUERIES_OF_SAMPLE if model in SAMPLE else ())]
    queries += [f"{name}={quote(junk)}" for name in filter_names(model) for junk in FILTER_JUNK]
    failed = [query for query in queries if operator.get(f"{page}?{query}").status_code >= 500]
    assert failed == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
def test_object_page_of_any_id_never_fails(operator: Client, model: type[Model]) -> None:
    page = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    first = model._default_manager.order_by("pk").first()
    ids = ["-1", HUGE, ODD, "_00", "_2F", "add", *([str(first.pk)] if first else [])]
    failed = [
        (pk, name)
        for pk in ids
        for name in ("change", "delete")
        if operator.get(f"{page}{quote(pk)}/{name}/?_changelist_filters=%25").status_code >= 500
    ]
    assert failed == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model._meta.label)
def test_action_with_odd_data_never_fails(operator: Client, model: type[Model]) -> None:
    page = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    forms: list[dict[str, str | list[str]]] = [
        {"action": action, "_selected_action": selected, "index": index}
        for action, selected, index in (
            *(("delete_selected", odd, "0") for odd in ("\x00", "abc", "99999999999999999999", "")),
            *((odd, "abc", "0") for odd in ("nosuch", "", "\x00")),
            ("delete_selected", "abc", "x"),
        )
    ]
    failed = [form for form in forms if operator.post(page, form).status_code >= 500]
    assert failed == []


LOGIN_FORMS = [
    {},
    {"username": "\x00", "password": "\x00"},
    {"username": "x" * 10_000, "password": "y" * 10_000},
    {"username": "\u202e💥", "password": "é"},
    {"username": "root", "password": "wrong", "next": "https://example.org/"},
    {"username": "root", "password": "wrong", "next": "\x00"},
]


@pytest.mark.parametrize("form", LOGIN_FORMS, ids=range(len(LOGIN_FORMS)))
def test_login_with_odd_names_never_fails_or_leads_away(form: dict[str, str]) -> None:
    client = Client(raise_request_exception=False)
    answer = client.post("/admin/login/", form)
    assert answer.status_code == 200
    assert client.get("/admin/login/", {"next": "//example.org"}).status_code == 200
    assert client.get("/admin/login/?next=%ff").status_code == 200
    assert client.get("/admin/login/?next=%00").status_code == 400
