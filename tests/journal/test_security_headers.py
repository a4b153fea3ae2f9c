from __future__ import annotations

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from journal.middleware import POLICY_HEADER, STRICT_POLICY, SecurityHeadersMiddleware


def served(path: str, response: HttpResponse) -> HttpResponse:
    def view(_request: HttpRequest) -> HttpResponse:
        return response

    return SecurityHeadersMiddleware(view)(RequestFactory().get(path))


def test_an_api_answer_may_load_nothing() -> None:
    response = served("/commitments/v1/info", HttpResponse())

    assert response[POLICY_HEADER] == STRICT_POLICY


def test_a_view_may_set_its_own_policy() -> None:
    response = served("/x", HttpResponse(headers={POLICY_HEADER: "default-src 'self'"}))

    assert response[POLICY_HEADER] == "default-src 'self'"


@pytest.mark.django_db
def test_the_admin_runs_no_inline_script(client: Client) -> None:
    response = client.get("/admin/login/")

    scripts = response[POLICY_HEADER].split("script-src", 1)[1].split(";", 1)[0]
    assert "'unsafe-inline'" not in scripts
    assert "'unsafe-eval'" not in scripts
    assert "'self'" in scripts
