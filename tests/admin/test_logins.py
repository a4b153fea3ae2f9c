"""Guessing passwords ends soon, wherever the guesses come from, and tells nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.models import User
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from journal.counters import LOCKED_OUT_LOGINS
from journal.logins import client_address, forget_failed_logins

pytestmark = pytest.mark.django_db
PASSWORD = "correct-horse-battery"  # noqa: S105 - of a user of a test


@pytest.fixture(autouse=True)
def _limits(settings: Any) -> None:
    settings.AXES_FAILURE_LIMIT = 3


@pytest.fixture
def admin_settings(settings: Any) -> Any:
    def change(**fields: object) -> None:
        current = settings.HEADROOM
        admin = current.admin.model_copy(update=fields)
        settings.HEADROOM = current.model_copy(update={"admin": admin})

    return change


def log_in(client: Client, username: str = "ann", password: str = "wrong", **meta: Any) -> Any:  # noqa: S107
    fields = {"username": username, "password": password}
    return client.post(reverse("admin:login"), fields, **meta)


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann", password=PASSWORD, is_staff=True)


@pytest.mark.usefixtures("ann")
def test_an_address_that_fails_too_often_is_locked_out(client: Client) -> None:
    counted = LOCKED_OUT_LOGINS._value.get()

    statuses = [log_in(client).status_code for _ in range(4)]
    right = log_in(client, password=PASSWORD)

    assert statuses == [200, 200, 429, 429]
    assert right.status_code == 429
    assert right.headers["Retry-After"] == "900"
    assert "Too many failed logins" in right.content.decode()
    assert "ann" not in right.content.decode()
    assert LOCKED_OUT_LOGINS._value.get() == counted + 3
    other = log_in(client, password=PASSWORD, REMOTE_ADDR="198.51.100.7")
    assert other.status_code == 302


@pytest.mark.usefixtures("ann")
def test_the_lock_opens_when_its_time_is_over(client: Client) -> None:
    for _ in range(3):
        log_in(client)
    AccessAttempt.objects.update(attempt_time=timezone.now() - timedelta(seconds=901))

    assert log_in(client, password=PASSWORD).status_code == 302


@pytest.mark.usefixtures("ann")
def test_names_that_exist_are_answered_like_others(client: Client) -> None:
    User.objects.create_user("plain", password=PASSWORD)
    User.objects.create_user("gone", password=PASSWORD, is_staff=True, is_active=False)
    pages = set()
    for number, (name, password) in enumerate(
        [("ann", "wrong"), ("nobody", "wrong"), ("plain", "wrong"), ("plain", PASSWORD),
         ("gone", PASSWORD)]
    ):  # fmt: skip
        answer = log_in(client, name, password, REMOTE_ADDR=f"198.51.100.{number}")
        page = answer.context["form"].non_field_errors()
        pages.add((answer.status_code, str(page)))

    assert len(pages) == 1


@pytest.mark.parametrize("name", ["\0", "a" * 500, "é" * 200])
def test_odd_names_are_refused(client: Client, name: str) -> None:
    assert log_in(client, name).status_code == 200


@pytest.mark.parametrize(
    ("proxies", "forwarded", "expected"),
    [
        pytest.param(0, "203.0.113.9", "10.0.0.1", id="no proxy: the header is the client's word"),
        pytest.param(1, "203.0.113.9", "203.0.113.9", id="one proxy"),
        pytest.param(1, "1.1.1.1, 203.0.113.9", "203.0.113.9", id="one proxy, forged"),
        pytest.param(2, "1.1.1.1, 203.0.113.9, 10.0.0.2", "203.0.113.9", id="two proxies"),
        pytest.param(2, "203.0.113.9", "10.0.0.1", id="too few entries"),
        pytest.param(1, "", "10.0.0.1", id="none"),
        pytest.param(1, "unknown", "10.0.0.1", id="no address"),
        pytest.param(1, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::", id="a site of IPv6"),
        pytest.param(1, "::ffff:203.0.113.9", "203.0.113.9", id="mapped"),
    ],
)
def test_where_a_login_comes_from(
    admin_settings: Any, proxies: int, forwarded: str, expected: str
) -> None:
    admin_settings(proxy_count=proxies)
    meta: dict[str, Any] = {"HTTP_X_FORWARDED_FOR": forwarded} if forwarded else {}
    request = RequestFactory().get("/", REMOTE_ADDR="10.0.0.1", **meta)

    assert client_address(request) == expected


def test_forged_addresses_do_not_help_behind_a_proxy(client: Client, admin_settings: Any) -> None:
    admin_settings(proxy_count=1)

    statuses = [
        log_in(client, HTTP_X_FORWARDED_FOR=f"192.0.2.{number}, 203.0.113.9").status_code
        for number in range(3)
    ]

    assert statuses == [200, 200, 429]


def test_old_failures_are_forgotten(client: Client) -> None:
    log_in(client)
    assert forget_failed_logins(now=timezone.now()) == 0
    assert AccessAttempt.objects.count() == 1

    assert forget_failed_logins(now=timezone.now() + timedelta(seconds=901)) == 1
    assert not AccessAttempt.objects.exists()


def test_passwords_are_not_kept_with_failures(client: Client) -> None:
    log_in(client, password="a-password-with-a-typo")
    (row,) = AccessAttempt.objects.values()
    assert "typo" not in str(row)


@pytest.mark.usefixtures("ann")
def test_a_login_is_good_for_twelve_hours(client: Client) -> None:
    log_in(client, password=PASSWORD)
    assert client.session.get_expiry_age() == 12 * 3600
