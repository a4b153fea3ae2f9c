"""The checks of a cloud against recorded bodies, read over real HTTP with the real client."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from core.doctor.findings import Finding, Severity, run_checks
from hosts.clients.cloud_probe import named_cloud
from hosts.cloud_checks import (
    SERVICES,
    Wanted,
    cloud_checks,
    configured_checks,
    list_finding,
    version_finding,
)
from tests.hosts.mini_cloud import MiniCloud
from tests.hosts.served_cloud import served_cloud

pytestmark = pytest.mark.django_db(transaction=True)  # clocks are compared with the database's
PASSWORD = "secret"  # noqa: S105 - that of the pretended cloud


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniCloud]:
    fake = MiniCloud()
    with served_cloud(fake, tmp_path, monkeypatch):
        yield fake


def findings(*names: str) -> list[Finding]:
    checks = cloud_checks(lambda: named_cloud("mini"))
    chosen = {f"cloud {name}": checks[f"cloud {name}"] for name in ("login", *names)}
    found = list(run_checks(chosen if names else checks))
    assert PASSWORD not in str(found)
    return found


def bad(*names: str) -> list[tuple[str, str, str]]:
    return [(one.check, one.found, one.todo) for one in findings(*names) if one.todo]


def test_a_cloud_that_can_be_read_is_fine_but_for_our_own_entry(cloud: MiniCloud) -> None:
    assert [check for check, _, _ in bad()] == ["cloud liquid"]
    texts = {one.check: one.found for one in reversed(findings())}
    assert texts["cloud login"] == "the token has the roles admin, reader"
    assert texts["cloud identity"] == (
        f"the catalog has {cloud.url}/identity (without /v3, either will do)"
    )
    told = [one.found for one in findings("compute")]
    assert "microversions 2.1 to 2.96, 2.69 is needed" in told
    assert "/servers/detail: can be read" in told
    assert any(one.startswith("the machine of compute: ") for one in told)


def test_an_address_with_its_version_leads_to_the_same(cloud: MiniCloud) -> None:
    cloud.paths["identity"] = "/identity/v3/"
    assert bad("identity") == []
    assert findings("identity")[1].found.endswith("(with /v3, either will do)")


@pytest.mark.parametrize(
    ("service", "wanted"),
    [(service, wanted) for service, lists in SERVICES.items() for wanted in lists],
    ids=lambda one: one.path if isinstance(one, Wanted) else one,
)
def test_a_list_that_is_refused_names_the_rule(
    cloud: MiniCloud, service: str, wanted: Wanted
) -> None:
    name = wanted.path.partition("?")[0]
    cloud.refused = name
    assert bad(service) == [
        (f"cloud {service}", f"{name}: status 403", f"let our user pass the rule {wanted.rule}")
    ]


def test_what_is_hidden_from_whoever_is_no_administrator_is_told(cloud: MiniCloud) -> None:
    cloud.roles = ("headroom_reader", "reader")
    told = {check: found for check, found, _ in bad("identity", "compute", "image", "placement")}
    assert told == {
        "cloud compute": "without the role admin our user does not see "
        "flavors that are not public and server groups of other projects",
        "cloud image": "without the role admin our user does not see "
        "images of other projects that are not public",
    }


def test_what_another_rule_keeps_from_us_is_told(cloud: MiniCloud) -> None:
    for flavor in cloud.region["compute"]["flavors"]:
        del flavor["extra_specs"]
    (told,) = bad("compute")
    assert told[1:] == (
        "/flavors/detail: without extra_specs",
        "let our user pass the rule os_compute_api:os-flavor-extra-specs:index",
    )


HOSTS_OF_MIGRATIONS = ("source_compute", "source_node", "dest_compute", "dest_node")


def migrations(*, are_told: int) -> list[dict[str, object]]:
    """Return two migrations, as Nova 2025.2 shows them, of which so many tell a host."""
    hidden = dict.fromkeys((*HOSTS_OF_MIGRATIONS, "dest_host"))
    whole = {"uuid": "m", "status": "completed", "instance_uuid": "v", **hidden}
    return [whole | ({"source_compute": "svc1"} if told else {}) for told in (0, are_told)]


def test_migrations_that_come_without_hosts_name_the_rule(cloud: MiniCloud) -> None:
    cloud.region["compute"]["migrations"] = migrations(are_told=0)
    (told,) = bad("compute")
    assert told[1:] == (
        "/os-migrations: without source_compute, room of VMs on their way is not held",
        "let our user pass the rule os_compute_api:os-migrations:index:host",
    )


def test_one_migration_with_a_host_is_enough(cloud: MiniCloud) -> None:
    cloud.region["compute"]["migrations"] = migrations(are_told=1)
    assert bad("compute") == []


def test_a_service_that_is_not_in_the_catalog_is_told(cloud: MiniCloud) -> None:
    del cloud.paths["compute"]
    ((check, found, _),) = bad("compute", "image")
    assert (check, found) == ("cloud compute", "Keystone's catalog has no address of compute")


def test_a_service_that_is_away_hides_no_other(cloud: MiniCloud) -> None:
    cloud.addresses["compute"] = "http://127.0.0.1:1/v2.1"
    ((check, _, _),) = bad("compute", "image", "placement")
    assert check == "cloud compute"


def test_a_wrong_password_is_told_once_and_not_quoted(cloud: MiniCloud) -> None:
    cloud.refuses_login = True
    login, *others = findings("compute", "image")
    assert (login.check, login.severity) == ("cloud login", Severity.ERROR)
    assert {one.found for one in others} == {"not looked at: there is no login"}


def test_a_clock_that_is_off_is_told(cloud: MiniCloud) -> None:
    cloud.date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    ((check, found, todo),) = bad("image")
    assert check == "cloud image"
    assert found.startswith("the machine of image: +3")
    assert todo.startswith("let the machine follow a time server")


@pytest.mark.parametrize(
    ("offered", "severity"),
    [
        (("2.1", "2.96"), Severity.OK),
        (("2.1", "2.69"), Severity.OK),
        (("2.1", "2.68"), Severity.ERROR),
        (("2.70", "2.96"), Severity.ERROR),
        (("2.1", "2.7"), Severity.ERROR),  # 7 is less than 69
        (("", ""), Severity.WARNING),
    ],
)
def test_microversions_are_compared_by_number(offered: tuple[str, str], severity: Severity) -> None:
    assert version_finding("compute", offered).severity == severity


@pytest.mark.parametrize("body", [None, [], {}, {"images": None}, {"images": {}}, "text"])
def test_an_answer_without_the_list_is_an_error(body: Any) -> None:
    wanted = Wanted(path="/images?limit=1", key="images", rule="get_images")
    assert list_finding(wanted, 200, body).severity == Severity.ERROR
    assert list_finding(wanted, 200, {"images": []}).found == "/images: can be read; it is empty"


def test_our_endpoint_in_the_catalog_is_asked(cloud: MiniCloud) -> None:
    cloud.paths["liquid-headroom"] = "/commitments/"
    assert bad("liquid") == []
    cloud.refused = "/v1/info"
    ((_, found, todo),) = bad("liquid")
    assert found == f"liquid-headroom at {cloud.url}/commitments/: status 403 for /v1/info"
    assert todo == "see docs/limes.md, When it does not work"


def test_a_liquid_that_is_not_ours_is_not_asked(cloud: MiniCloud) -> None:
    cloud.paths["liquid-swift"] = "/swift"
    ((_, found, _),) = bad("liquid")
    assert found.startswith("no service liquid-... of the catalog leads to /commitments")


def test_limes_may_be_missing(cloud: MiniCloud) -> None:
    del cloud.paths["resources"]
    ((check, found, _),) = bad("limes")
    assert (check, found.partition(":")[0]) == (
        "cloud limes",
        "the catalog has no service resources",
    )


def test_without_a_login_in_the_settings_there_is_nothing_to_check(
    cloud: MiniCloud, settings: Any
) -> None:
    assert configured_checks() == {}
    login = {
        "auth_url": f"{cloud.url}/identity/v3",
        "username": "reader",
        "password": PASSWORD,
        "project_name": "admin",
    }
    keystone = type(settings.HEADROOM.keystone).model_validate(login)
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"keystone": keystone})
    told = list(run_checks(configured_checks()))
    assert {one.check for one in told if one.todo} == {"cloud liquid"}
    _feed_reads_mini(settings)
    assert "cloud service login" in {one.check for one in run_checks(configured_checks())}


def test_lists_are_looked_at_as_the_user_of_the_feed(cloud: MiniCloud, settings: Any) -> None:
    cloud.refused = "/os-hypervisors/detail"
    _feed_reads_mini(settings)
    told = {one.check for one in run_checks(configured_checks()) if one.todo}
    assert told == {"cloud compute", "cloud liquid"}


def _feed_reads_mini(settings: Any) -> None:
    feed = settings.HEADROOM.feed.model_copy(update={"cloud": "mini"})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"feed": feed})
