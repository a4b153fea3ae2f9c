"""What a standby may be asked for writes nothing: no page, no list, no row of the operator API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.db import DatabaseError, connection, transaction
from django.db.models import Model
from django.test import Client
from django.urls import URLResolver, get_resolver, reverse

from hosts.models import Host
from journal.standby.reads import READING

pytestmark = pytest.mark.django_db
MODELS: list[type[Model]] = list(admin.site._registry)
READ_ONLY = "SET TRANSACTION READ ONLY"
#: Others are no pages: questions without their parameters, what is not set up here.
FAILED = 500


def plain_routes(patterns: list[Any], prefix: str = "/") -> Iterator[str]:
    """Return addresses of routes that name no parameter and that a standby may answer."""
    for pattern in patterns:
        route = prefix + str(pattern.pattern).removeprefix("^").removesuffix("$")
        if isinstance(pattern, URLResolver):
            yield from plain_routes(pattern.url_patterns, route)
        elif READING.match(route) and not {"<", "("} & set(route):
            yield route


def rows_pages() -> Iterator[str]:
    """Return the page of a row of each model, and a history: it is the same page for all."""
    yield reverse("admin:hosts_host_history", args=[Host.objects.all()[:1].get().pk])
    for model in MODELS:
        row = model._default_manager.first()
        if row is not None:
            name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
            yield reverse(f"{name}_change", args=[row.pk])


@pytest.mark.usefixtures("region")
def test_what_a_standby_may_answer_writes_nothing(admin_client: Client) -> None:
    addresses = sorted({*plain_routes(get_resolver().url_patterns), *rows_pages()})
    assert len(addresses) > len(MODELS), "lists, pages and the operator API"
    odd: dict[str, str] = {}
    for address in addresses:
        try:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute(READ_ONLY)
                answer = admin_client.get(address)
        except DatabaseError as error:
            odd[address] = str(error).strip()
        else:
            if answer.status_code >= FAILED:
                odd[address] = str(answer.status_code)
    assert odd == {}
