"""The search over all objects: what it finds, what it costs, who may see what."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from commitments.models import Commitment, RefusedChange
from console import search
from console.links import row_url
from hosts.models import Aggregate, Host, Image, Instance, Project, ServerGroup
from journal.models import AuditEntry
from tests import factories
from tests.admin.test_frame import staff_client
from tests.admin.test_pages import page_url

pytestmark = pytest.mark.django_db
STATEMENTS = 12


def look(client: Client, word: str, **more: str) -> Any:
    return client.get(reverse("headroom_search"), {"q": word, **more})


def found(client: Client, word: str, **more: str) -> dict[str, list[str]]:
    """Return titles of groups with the addresses of their lines."""
    response = look(client, word, **more)
    assert response.status_code == 200
    return {group.title: [line.url for line in group.lines] for group in response.context["groups"]}


@pytest.mark.usefixtures("region")
def test_a_whole_id_leads_to_its_object(admin_client: Client) -> None:
    rows: list[tuple[Any, str]] = [
        (row, getattr(row, field))
        for model, field in (
            (Instance, "openstack_id"), (Host, "name"), (Project, "openstack_id"),
            (Commitment, "commitment_uuid"),
        )
        for row in model._default_manager.all()
    ]  # fmt: skip

    for row, word in rows:
        assert look(admin_client, f" {word} ").headers["Location"] == row_url(row)


def test_a_uuid_is_found_however_it_is_written(admin_client: Client) -> None:
    uuid = uuid4()
    project = factories.make_project(uuid.hex)
    vm = factories.make_vm(str(uuid4()), None)

    assert look(admin_client, str(uuid)).headers["Location"] == page_url(
        Project, "change", project.pk
    )
    assert look(admin_client, UUID(vm.openstack_id).hex.upper()).headers["Location"] == reverse(
        "headroom_vm", args=[vm.openstack_id]
    )


@pytest.mark.usefixtures("region")
def test_everything_about_an_object_and_a_request(admin_client: Client) -> None:
    refused = RefusedChange.objects.earliest("id")
    entry = AuditEntry.objects.filter(object_type="Commitment").earliest("id")
    commitment = Commitment.objects.get(commitment_uuid=entry.object_id)
    asked = found(admin_client, refused.request_id)
    everything = found(admin_client, commitment.commitment_uuid, everything="1")

    assert page_url(RefusedChange, "change", refused.pk) in asked["Refused requests"]
    assert page_url(AuditEntry, "change", entry.pk) in asked["Audit entries"]
    assert everything["Commitments"] == [page_url(Commitment, "change", commitment.pk)]
    assert page_url(AuditEntry, "change", entry.pk) in everything["Audit entries"]
    assert "Events of the commitment" in everything
    page = admin_client.get(page_url(Commitment, "change", commitment.pk)).content.decode()
    link = urlencode({"q": commitment.commitment_uuid, "everything": "1"}).replace("&", "&amp;")
    assert f'href="{reverse("headroom_search")}?{link}"' in page


def test_who_asked_for_a_project_or_commitment_is_found(admin_client: Client) -> None:
    asked = {"commitment": "c-7", "project": "p-7", "amount_units": 1}
    row = RefusedChange.objects.create(
        request_id="req-7", actor="limes", zone="az-a", reason="full", asked=[asked], refused=[]
    )

    for word in ("c-7", "p-7"):
        assert found(admin_client, word, everything="1") == {
            "Refused requests that asked for it": [page_url(RefusedChange, "change", row.pk)]
        }


def test_beginnings_of_names(admin_client: Client) -> None:
    for number in range(search.SHOWN + 3):
        factories.make_host(f"node-{number:03}")
    factories.make_host("other")

    response = look(admin_client, "node-")
    (group,) = response.context["groups"]

    assert [line.text.split()[0] for line in group.lines] == sorted(
        line.text.split()[0] for line in group.lines
    )
    assert (group.title, len(group.lines), group.has_more) == ("Hosts", search.SHOWN, True)
    assert group.list_url == f"{page_url(Host, 'changelist')}?q=node-"
    assert found(admin_client, "n") == {}
    assert "Nothing found" in look(admin_client, "<script>x").content.decode()


def test_parts_of_names_of_any_case_stand_after_beginnings(admin_client: Client) -> None:
    for name in ("web-1.prod", "API-web-2", "a-WEB-3"):
        factories.make_vm(name)
    factories.make_host("rack7-node-web")
    factories.make_project("p-web", name="The web shop")

    groups = look(admin_client, "web").context["groups"]

    assert {
        group.title: [line.text.split("  ")[0] for line in group.lines] for group in groups
    } == {
        "VMs": ["web-1.prod", "API-web-2", "a-WEB-3"],
        "Hosts": ["rack7-node-web"],
        "Projects": ["The web shop"],
    }
    assert found(admin_client, "eb") == {}
    assert set(found(admin_client, "EB-")) == {"VMs"}


def test_every_kind_that_has_a_name_is_found_by_a_part_of_it(admin_client: Client) -> None:
    factories.make_domain(name="Meridian-Bank")
    factories.make_group("meridian_v1", flavors=[("c2_MERIDIAN", 4096, 2)])
    Image.objects.create(openstack_id="i", name="a meridian image")
    ServerGroup.objects.create(openstack_id="s", name="of MERIDIAN")
    Aggregate.objects.create(uuid="a", name="for-meridian")

    assert set(found(admin_client, "RIDIAN")) == {
        "Domains", "Flavor groups", "Flavors", "Images", "Server groups", "Host aggregates"
    }  # fmt: skip


def test_the_beginning_of_an_id_is_found_in_capitals_too(admin_client: Client) -> None:
    vm = factories.make_vm("other", openstack_id="abcdef01-2345-4678-9abc-def012345678")

    assert list(found(admin_client, "ABCDEF01-23")) == ["VMs"]
    assert reverse("headroom_vm", args=[vm.openstack_id]) in found(admin_client, "ABcd")["VMs"]


@pytest.mark.parametrize("word", ["", "a" * 5000, "%", "_", "'; --", "1", "\\", "é" * 300])
def test_any_word_is_answered(admin_client: Client, word: str) -> None:
    factories.make_host("h1")

    assert look(admin_client, word).status_code in {200, 302}
    assert "Hosts" not in found(admin_client, word) or word == ""


@pytest.mark.usefixtures("region")
def test_only_what_may_be_seen_is_found() -> None:
    host = Host.objects.earliest("id")
    client = staff_client("looker", "view_host")
    nobody = staff_client("nobody")
    commitment = Commitment.objects.earliest("id")

    assert look(client, host.name).status_code == 302
    assert found(client, commitment.commitment_uuid) == {}
    assert found(client, "req-1") == {}
    assert found(nobody, host.name) == {}
    assert look(Client(), host.name).headers["Location"].startswith(reverse("admin:login"))


@pytest.mark.usefixtures("region")
def test_a_search_takes_a_fixed_number_of_statements(admin_client: Client) -> None:
    for word in ("f", "project-", "req-1", "grown", str(uuid4())):
        with CaptureQueriesContext(connection) as captured:
            look(admin_client, word, everything="1")
        assert len(captured) <= STATEMENTS, word


def test_every_look_up_reads_few_rows() -> None:
    """Each branch may read an index or a small table; forced, it finds one of its condition."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        for source in search.SOURCES:
            words = [str(uuid4())]
            for condition in (*source.conditions(words), *source.beginnings("node")):
                rows = search.branch(0, source, condition)
                rows.query.clear_limits()
                rows.query.clear_ordering(force=True)  # else an empty table may be read in order
                plan = str(rows.explain())
                is_keyed = "Index Cond" in plan or "Recheck Cond" in plan
                assert is_keyed, f"{source.title}: {condition}\n{plan}"


def test_a_search_that_takes_too_long_says_so(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement = "SELECT pg_sleep(30) WHERE %(word)s <> ''"
    monkeypatch.setattr(search, "AUDITED", statement)
    monkeypatch.setattr(search, "LIMIT_MILLISECONDS", 50)

    page = look(admin_client, "anything")

    assert page.status_code == 200
    assert "took too long" in page.content.decode()
