"""Logging in at a real OpenID Connect provider, over HTTP, as a browser does."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import oidc_provider_mock
import pytest
import requests
from django.conf import settings as django_settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from django.test import Client
from django.urls import clear_url_caches, reverse
from pydantic import SecretStr, ValidationError

import config.urls
from config.sections_web import AdminSettings, OidcSettings
from config.settings import scheme_header
from journal.models import AuditEntry

pytestmark = pytest.mark.django_db(transaction=True)
PEOPLE: dict[str, dict[str, object]] = {
    "ann": {"preferred_username": "ann", "email": "ann@example.org", "groups": ["cloud-ops"]},
    "bob": {"preferred_username": "bob", "groups": ["cloud-look", "others"]},
    "eve": {"preferred_username": "eve", "groups": ["others"]},
    "mal": {"preferred_username": "root", "groups": ["cloud-ops"]},
    "non": {"groups": ["cloud-ops"]},
    "odd": {"preferred_username": "odd", "groups": "cloud-ops"},
}


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    users = [oidc_provider_mock.User(sub=sub, claims=dict(told)) for sub, told in PEOPLE.items()]
    with oidc_provider_mock.run_server_in_thread(user_claims=users) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture
def oidc(provider: str, settings: Any) -> Iterator[OidcSettings]:
    """Headroom as a client of the provider, as ``config.settings`` would have it."""
    found = requests.get(f"{provider}/.well-known/openid-configuration", timeout=10).json()
    chosen = OidcSettings(
        client_id="headroom",
        client_secret=SecretStr("secret"),
        issuer=found["issuer"],
        authorization_url=found["authorization_endpoint"],
        token_url=found["token_endpoint"],
        userinfo_url=found["userinfo_endpoint"],
        jwks_url=found["jwks_uri"],
        verify_key_id=False,
        viewer_groups=("cloud-look",),
        operator_groups=("cloud-ops",),
    )
    settings.HEADROOM = django_settings.HEADROOM.model_copy(update={"oidc": chosen})
    for name, text in oidc_settings(settings.HEADROOM.oidc).items():
        setattr(settings, name, text)
    settings.AUTHENTICATION_BACKENDS = [
        *django_settings.AUTHENTICATION_BACKENDS,
        "journal.oidc.OidcBackend",
    ]
    importlib.reload(config.urls)
    clear_url_caches()
    yield chosen
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"oidc": OidcSettings()})
    importlib.reload(config.urls)
    clear_url_caches()


def oidc_settings(oidc: OidcSettings) -> dict[str, Any]:
    from config.settings import oidc_client  # noqa: PLC0415 - a plain function of the module

    return oidc_client(oidc)


def begin(client: Client) -> str:
    """Return the address at which the provider asks who it is."""
    begun = client.get(reverse("oidc_authentication_init"), {"next": "/admin/"})
    assert begun.status_code == 302
    return str(begun.headers["Location"])


def log_in(client: Client, sub: str) -> Any:
    """Choose a user at the provider, and follow the way back."""
    chosen = requests.post(begin(client), {"sub": sub}, allow_redirects=False, timeout=10)
    assert chosen.status_code in {302, 303}, chosen.text
    back = urlsplit(chosen.headers["Location"])
    return client.get(f"{back.path}?{back.query}")


@pytest.mark.usefixtures("oidc")
class TestLogin:
    @pytest.mark.parametrize(
        ("proxies", "told", "scheme"),
        [(1, "https", "https"), (1, "http", "http"), (1, "", "http"), (0, "https", "http")],
    )
    def test_people_come_back_by_the_scheme_that_our_proxy_tells(
        self, client: Client, settings: Any, proxies: int, told: str, scheme: str
    ) -> None:
        settings.SECURE_PROXY_SSL_HEADER = scheme_header(AdminSettings(proxy_count=proxies))
        headers = {"Host": "testserver"} | ({"X-Forwarded-Proto": told} if told else {})

        begun = client.get(reverse("oidc_authentication_init"), headers=headers)

        query = parse_qs(urlsplit(begun.headers["Location"]).query)
        assert query["redirect_uri"] == [f"{scheme}://testserver/oidc/callback/"]

    @pytest.mark.parametrize(("sub", "role"), [("ann", "operator"), ("bob", "viewer")])
    def test_groups_of_the_provider_become_roles(self, client: Client, sub: str, role: str) -> None:
        answer = log_in(client, sub)

        assert answer.headers["Location"] == "/admin/"
        user = User.objects.get(username=sub)
        assert [group.name for group in user.groups.all()] == [role]
        assert (user.is_staff, user.is_superuser, user.has_usable_password()) == (
            True,
            False,
            False,
        )
        assert client.get("/admin/").status_code == 200
        assert client.get(reverse("admin:hosts_host_changelist")).status_code == 200
        assert client.session.get_expiry_age() == 12 * 3600
        entry = AuditEntry.objects.filter(object_type="User").get()
        assert (entry.action, entry.actor) == ("user_created", f"admin:{sub}")
        assert entry.after is not None
        assert entry.after["groups"] == [role]

    @pytest.mark.parametrize("sub", ["eve", "non", "odd"])
    def test_who_has_no_role_or_no_name_stays_out(self, client: Client, sub: str) -> None:
        answer = log_in(client, sub)

        assert answer.headers["Location"] == reverse("admin:login")
        assert not User.objects.exists()

    def test_users_with_a_password_of_ours_are_not_taken_over(self, client: Client) -> None:
        User.objects.create_superuser("root", password="our-own-password")

        assert log_in(client, "mal").headers["Location"] == reverse("admin:login")
        assert "_auth_user_id" not in client.session

    def test_superusers_without_a_password_are_not_taken_over_either(self, client: Client) -> None:
        User.objects.create(username="root", is_superuser=True, password=make_password(None))

        assert log_in(client, "mal").headers["Location"] == reverse("admin:login")

    def test_a_lost_group_is_lost_here_at_the_next_login(
        self, client: Client, oidc: OidcSettings, settings: Any
    ) -> None:
        log_in(client, "ann")
        changed = oidc.model_copy(update={"operator_groups": (), "viewer_groups": ("cloud-ops",)})
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"oidc": changed})

        log_in(Client(), "ann")

        user = User.objects.get(username="ann")
        assert [group.name for group in user.groups.all()] == ["viewer"]
        entry = AuditEntry.objects.filter(object_type="User").order_by("-id")[0]
        assert (entry.action, entry.before and entry.before["groups"]) == (
            "user_changed", ["operator"],
        )  # fmt: skip

    def test_a_deactivated_user_stays_out(self, client: Client) -> None:
        log_in(client, "ann")
        User.objects.update(is_active=False)

        assert client.get("/admin/").status_code == 302
        assert log_in(Client(), "ann").headers["Location"] == reverse("admin:login")

    def test_an_answer_that_nobody_asked_for_is_refused(self, client: Client) -> None:
        callback = reverse("oidc_authentication_callback")
        assert client.get(callback, {"code": "x", "state": "y"}).status_code == 302
        begin(client)
        assert client.get(callback, {"code": "x", "state": "y"}).status_code == 400

    def test_a_code_is_good_once(self, client: Client) -> None:
        chosen = requests.post(begin(client), {"sub": "ann"}, allow_redirects=False, timeout=10)
        back = urlsplit(chosen.headers["Location"])
        assert client.get(f"{back.path}?{back.query}").headers["Location"] == "/admin/"

        assert client.get(f"{back.path}?{back.query}").status_code == 400

    @pytest.mark.parametrize("changed", [{"issuer": "http://other"}, {"client_id": "other"}])
    def test_tokens_of_others_or_for_others_are_refused(
        self, client: Client, oidc: OidcSettings, settings: Any, changed: dict[str, str]
    ) -> None:
        other = oidc.model_copy(update=changed)
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"oidc": other})

        assert log_in(client, "ann").headers["Location"] == reverse("admin:login")
        assert not User.objects.exists()

    def test_a_provider_that_does_not_answer_is_no_error_of_ours(
        self, client: Client, settings: Any
    ) -> None:
        settings.OIDC_OP_TOKEN_ENDPOINT = "http://127.0.0.1:1/token"  # noqa: S105 - an address

        assert log_in(client, "ann").headers["Location"] == reverse("admin:login")

    def test_the_login_page_offers_it(self, client: Client) -> None:
        page = client.get(reverse("admin:login")).content.decode()
        assert re.search(r'href="/oidc/authenticate/"', page)


def test_without_settings_there_is_no_such_login(client: Client) -> None:
    assert client.get("/oidc/authenticate/").status_code == 404
    assert "/oidc/" not in client.get(reverse("admin:login")).content.decode()


def test_half_a_provider_is_refused() -> None:
    with pytest.raises(ValidationError, match="needs client_secret, issuer"):
        OidcSettings(client_id="headroom")
