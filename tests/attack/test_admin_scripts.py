"""The admin's scripts in production: ours in the theme's place, and no leave to evaluate text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.e2e.processes import WebServer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
STATIC = Path(__file__).resolve().parents[2] / "static"
OURS = ("headroom/page.js", "vendor/alpine-csp/alpine.js")


def test_production_serves_every_script_of_an_admin_page(web: WebServer) -> None:
    page = web.send("GET", "/admin/login/", token=None)

    assert page.status == 200
    assert page.headers["content-security-policy"].count("script-src 'self';") == 1
    scripts = re.findall(r'<script src="([^"]+)"', page.body.decode())
    answers = {path: web.send("GET", path, token=None) for path in scripts}
    assert {answer.status for answer in answers.values()} == {200}
    assert "/static/unfold/js/alpine/alpine.js" not in answers  # it evaluates text
    for path in OURS:
        assert answers[f"/static/{path}"].body == (STATIC / path).read_bytes()
