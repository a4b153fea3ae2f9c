"""Guessing the admin's password from one address ends after the set number of failures."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlencode

import pytest
import requests

from config.launcher.demo import ADDRESS
from tests.e2e.processes import WebServer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]
LIMIT = 5
GUESSES = 40


@pytest.mark.usefixtures("transactional_db")
def test_guesses_at_once_from_one_address_are_locked_out(tmp_path: Path) -> None:
    server = WebServer(
        directory=tmp_path,
        overrides={
            "HEADROOM_ADMIN__LOGIN_FAILURES": str(LIMIT),
            "HEADROOM_SECURE_COOKIES": "false",
        },
    )
    server.start()
    url = f"http://{ADDRESS}:{server.port}/admin/login/"
    try:
        cookie = SimpleCookie(requests.get(url, timeout=30).headers["Set-Cookie"])[
            "csrftoken"
        ].value

        def guess(number: int) -> int:
            fields = {"username": f"user{number % 3}", "password": f"guess{number}"}
            body = urlencode({**fields, "csrfmiddlewaretoken": cookie})
            headers = {
                "Cookie": f"csrftoken={cookie}",
                "Content-Type": "application/x-www-form-urlencoded",
                "X-Forwarded-For": f"192.0.2.{number}",
            }
            return requests.post(url, body, headers=headers, timeout=30).status_code

        with ThreadPoolExecutor(4) as threads:
            statuses = Counter(threads.map(guess, range(GUESSES)))

        assert set(statuses) == {200, 429}, statuses
        # Guesses that are under way together are counted together.
        assert statuses[200] < LIMIT + 4
        assert guess(GUESSES) == 429
    finally:
        server.end()
