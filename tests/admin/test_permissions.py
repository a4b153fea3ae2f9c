"""Who may see what: every address of the admin, by the URL resolver, for every role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.template.response import SimpleTemplateResponse
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.urls.resolvers import RegexPattern

from commitments.models import Commitment
from journal.models import AuditEntry
from journal.roles import ADMINISTRATOR, OPERATOR, ROLES, VIEWER
from tests import factories
from tests.admin.test_pages import page_url

MODELS = sorted(admin.site._registry, key=lambda model: model._meta.label)
#: What everybody may open who is signed in, and shows no rows: the first page, which has a card
#: per permission; one's own password; ways out; words of scripts.
OPEN = {
    "admin:index", "admin:login", "admin:logout", "admin:password_change",
    "admin:password_change_done", "admin:jsi18n", "admin:search",
}  # fmt: skip
#: Words for fields that offer choices, and ways to the pages of a site: we have neither.
UNUSED = {"admin:autocomplete", "admin:view_on_site"}
FIGURES = ("hr-table", "hr-bar", "hr-dashboard-figure")


def patterns(resolver: URLResolver) -> Iterator[URLPattern]:
    for entry in resolver.url_patterns:
        if isinstance(entry, URLResolver):
            yield from patterns(entry)
        else:
            yield entry


def admin_resolver() -> URLResolver:
    (found,) = (
        entry
        for entry in get_resolver().url_patterns
        if isinstance(entry, URLResolver) and entry.namespace == "admin"
    )
    return found


def address_of(pattern: URLPattern, row_of: dict[str, Any]) -> str:
    """Return an address that the pattern takes, of a row that is there where it wants one."""
    assert not isinstance(pattern.pattern, RegexPattern)
    arguments: dict[str, Any] = {}
    for name, converter in pattern.pattern.converters.items():
        label = str(pattern.name).rpartition("_")[0]
        given = {"app_label": "hosts", "object_type": "Commitment", "public_id": "x", "url": "x"}
        kind = type(converter).__name__
        fallback = 1 if kind == "IntConverter" else "1"
        arguments[name] = given.get(name) or row_of.get(label) or fallback
    return reverse(f"admin:{pattern.name}", kwargs=arguments)


@pytest.fixture
def unrendered() -> Iterator[None]:
    """Make no HTML of pages whose status and data alone are looked at."""
    with patch.object(SimpleTemplateResponse, "rendered_content", ""):
        yield


@pytest.fixture
def client_of(client: Client) -> Any:
    def sign_in(*roles: str, is_staff: bool = True) -> Client:
        user = User.objects.create_user("somebody", is_staff=is_staff)
        user.groups.set(Group.objects.filter(name__in=roles))
        assert user.groups.count() == len(roles)
        client.force_login(user)
        return client

    return sign_in


@pytest.fixture
def addresses(region: None) -> list[tuple[str, str]]:
    del region
    row_of = {}
    for model in MODELS:
        row = model._default_manager.first()
        if row is not None:
            row_of[f"{model._meta.app_label}_{model._meta.model_name}"] = row.pk
    return [
        (f"admin:{pattern.name}", address_of(pattern, row_of))
        for pattern in patterns(admin_resolver())
        if pattern.name and not isinstance(pattern.pattern, RegexPattern)
    ]


def test_without_permissions_no_address_of_the_admin_shows_anything(
    client_of: Any, addresses: list[tuple[str, str]]
) -> None:
    """An old address of a row leads to its page, which is forbidden: nothing is told by it."""
    client = client_of()
    assert len(addresses) > 5 * len(MODELS)

    shown = {}
    for name, address in addresses:
        if name not in OPEN and name not in UNUSED:
            answer = client.get(address, follow=True)
            first = 302 if answer.redirect_chain else answer.status_code
            last = answer.status_code
            if first not in {302, 403} or last not in {200, 403, 404}:
                shown[address] = (first, last)

    assert shown == {}
    assert {client.get(address).status_code for name, address in addresses if name in UNUSED} <= {
        403, 404
    }  # fmt: skip
    assert {client.get(address).status_code for name, address in addresses if name in OPEN} <= {
        200, 302, 405
    }  # fmt: skip


@pytest.mark.usefixtures("region")
def test_the_dashboard_shows_no_figures_without_permissions(client_of: Any) -> None:
    page = client_of().get(reverse("admin:index"))

    assert page.status_code == 200
    assert not [figure for figure in FIGURES if f'class="{figure}' in page.content.decode()]


@pytest.mark.parametrize(
    ("permission", "card"),
    [
        ("commitments.view_commitment", "Commitments not held"),
        ("commitments.view_commitment", "Commitments by state"),
        ("capacity.view_hostcapacity", "Zones"),
        ("capacity.view_groupcapacity", "Flavor groups"),
        ("journal.view_heartbeat", "Health"),
    ],
)
@pytest.mark.usefixtures("region")
def test_each_card_of_the_dashboard_has_its_permission(
    client: Client, permission: str, card: str
) -> None:
    user = User.objects.create_user("somebody", is_staff=True)
    client.force_login(user)
    assert f'aria-label="{card}"' not in client.get(reverse("admin:index")).content.decode()

    app, _, codename = permission.partition(".")
    model = next(m for m in MODELS if f"view_{m._meta.model_name}" == codename)
    assert model._meta.app_label == app
    grant(user, permission)

    assert f'aria-label="{card}"' in client.get(reverse("admin:index")).content.decode()


def grant(user: User, permission: str) -> None:
    from django.contrib.auth.models import Permission  # noqa: PLC0415

    app, _, codename = permission.partition(".")
    user.user_permissions.add(
        Permission.objects.get(content_type__app_label=app, codename=codename)
    )


@pytest.mark.parametrize(
    ("role", "sees", "adds_rules", "sees_users"),
    [
        pytest.param(VIEWER, True, False, False, id=VIEWER),
        pytest.param(OPERATOR, True, True, False, id=OPERATOR),
        pytest.param(ADMINISTRATOR, True, True, True, id=ADMINISTRATOR),
        pytest.param("", False, False, False, id="none"),
    ],
)
@pytest.mark.usefixtures("region", "unrendered")
def test_what_each_role_may_do(
    client_of: Any, role: str, sees: bool, adds_rules: bool, sees_users: bool
) -> None:
    client = client_of(*filter(None, [role]))

    for model in MODELS:
        expected = sees_users if model in {User, Group} else sees
        status = client.get(page_url(model, "changelist")).status_code
        assert (status == 200) is expected, model
    add = reverse("admin:capacity_flavorgrouprule_add")
    assert (client.get(add).status_code == 200) is adds_rules
    assert client.get(reverse("admin:commitments_commitment_add")).status_code == 403


@pytest.mark.usefixtures("region")
def test_lists_are_drawn_for_those_who_may_only_look(client_of: Any) -> None:
    client = client_of(VIEWER)

    for model in MODELS:
        if model not in {User, Group}:
            assert client.get(page_url(model, "changelist")).status_code == 200, model


@pytest.mark.usefixtures("region")
def test_the_way_to_an_object_tells_nothing_to_those_who_may_not_see_it(client_of: Any) -> None:
    known = str(Commitment.objects.order_by("pk")[0].commitment_uuid)
    client = client_of()

    def status(kind: str, key: str) -> int:
        return int(client.get(reverse("admin:headroom_find", args=[kind, key])).status_code)

    assert {status("Commitment", known), status("Commitment", "x"), status("Nothing", "x")} == {403}


def test_roles_are_set_back_by_every_migrate(db: None) -> None:
    del db
    viewer = Group.objects.get(name=VIEWER)
    before = set(viewer.permissions.values_list("codename", flat=True))
    assert before
    assert all(name.startswith("view_") for name in before)
    assert not viewer.permissions.filter(content_type__app_label="auth").exists()
    viewer.permissions.clear()
    Group.objects.get(name=OPERATOR).delete()

    call_command("migrate", verbosity=0)

    assert set(viewer.permissions.values_list("codename", flat=True)) == before
    assert set(Group.objects.values_list("name", flat=True)) >= set(ROLES)


@pytest.mark.usefixtures("region", "unrendered")
def test_endless_searches_find_nothing(admin_client: Client) -> None:
    words, one_word, short_words = "a " * 2000, "x" * 5000, "a b " * 10 + "c"
    for model in MODELS:
        if not admin.site.get_model_admin(model).search_fields:
            continue
        url = page_url(model, "changelist")
        for term in (words, one_word, short_words) if model is Commitment else (short_words,):
            answer: Any = admin_client.get(url, {"q": term})
            assert answer.status_code == 200, (model, term)
            assert answer.context_data["cl"].result_count == 0, (model, term)
        assert admin_client.get(url, {"q": "a " * 20}).status_code == 200, model


@pytest.mark.parametrize("model", [Commitment, User], ids=lambda model: model._meta.label_lower)
def test_nul_is_refused_wherever_it_stands(admin_client: Client, model: Any) -> None:
    url = page_url(model, "changelist")

    assert admin_client.get(f"{url}?q=%00").status_code == 400
    assert admin_client.get(f"{url}%00/change/").status_code == 400
    posted = admin_client.post(url, {"action": "\0", "_selected_action": "\0", "q": "\0"})
    assert posted.status_code in {200, 302, 403}


def test_nul_in_the_way_to_an_object_is_refused(admin_client: Client) -> None:
    factories.make_commitment()
    assert admin_client.get("/admin/journal/auditentry/find/Commitment/%00/").status_code == 400


def test_nothing_is_audited_by_looking(admin_client: Client) -> None:
    admin_client.get(reverse("admin:index"))
    assert not AuditEntry.objects.filter(object_type__in=("User", "Group")).exists()
