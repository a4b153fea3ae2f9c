"""The client of Keystone and Limes, over real HTTP (spec liquid, 15.1, 15.2; commitments, 16.1)."""

from __future__ import annotations

from typing import Any

import pytest

from commitments.clients.cloud import CloudProject, CloudUnavailable, ProjectAnswer
from commitments.clients.http_cloud import HTTPCloud, answers_of
from commitments.conf import SyncSettings
from journal.keystone import _shared_login
from tests.peers.fake_cloud import FakeCloud, limes_commitment
from tests.peers.keystone import REGION, Keystone

UUID = "6a1d3c52-0d1c-4a7a-9d7e-1a2b3c4d5e6f"
LIMES = "/limes/v1/"


def client(fake_cloud: FakeCloud, *, password: str | None = None, **options: Any) -> HTTPCloud:
    login = fake_cloud.settings(**({"password": password} if password else {}))
    fields = {"retries": 2, "retry_delay_seconds": 0, "timeout_seconds": 20} | options
    return HTTPCloud(login, SyncSettings(**fields))


def listed(cloud: HTTPCloud) -> dict[str, ProjectAnswer]:
    answers = cloud.list_commitments(cloud.list_projects())
    return {answer.project.project_id: answer for answer in answers}


@pytest.fixture(autouse=True)
def _own_login() -> None:
    _shared_login.cache_clear()


def test_all_clients_of_a_process_share_one_login(fake_cloud: FakeCloud) -> None:
    fake_cloud.add("p1")
    for _ in range(3):
        listed(client(fake_cloud))
    assert fake_cloud.seen["login"] == 1


@pytest.mark.parametrize("page_size", [1, 2, 3, 100])
def test_projects_of_every_page_are_listed(fake_cloud: FakeCloud, page_size: int) -> None:
    for number in range(5):
        fake_cloud.add(f"p{number}")
    fake_cloud.page_size = page_size
    projects = client(fake_cloud).list_projects()
    assert [project.project_id for project in projects] == ["p0", "p1", "p2", "p3", "p4"]
    assert projects[0] == CloudProject(project_id="p0", domain_id="domain-1", name="name-of-p0")


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_commitments_are_read_at_the_public_endpoint_of_the_catalog(
    fake_cloud: FakeCloud, suffix: str
) -> None:
    fake_cloud.limes_suffix = suffix
    commitment = limes_commitment(UUID, transfer_status="public")
    fake_cloud.add("p1", [commitment])
    fake_cloud.add("p2")
    answers = listed(client(fake_cloud))
    assert answers["p1"].commitments == [commitment]
    assert (answers["p2"].commitments, answers["p2"].error) == ([], "")


def test_a_project_that_limes_does_not_know_yet_has_no_commitments(fake_cloud: FakeCloud) -> None:
    fake_cloud.add("p1")
    fake_cloud.always = {LIMES: 404}
    answer = listed(client(fake_cloud))["p1"]
    assert (answer.commitments, answer.error) == ([], "")


@pytest.mark.parametrize("fault", [400, 401, 403, 500, 503, "cut", "garbage"])
def test_a_project_that_cannot_be_read_says_why_and_the_others_are_read(
    fake_cloud: FakeCloud, fault: int | str
) -> None:
    fake_cloud.add("p1")
    fake_cloud.add("p2", [limes_commitment(UUID)])
    fake_cloud.always = {f"{LIMES}domains/domain-1/projects/p1/": fault}
    answers = listed(client(fake_cloud))
    assert answers["p1"].error.startswith("Limes: ")
    assert "\n" not in answers["p1"].error
    assert len(answers["p2"].commitments) == 1


@pytest.mark.parametrize("document", [{}, {"commitments": None}, {"commitments": [7]}, [], "x"])
def test_an_answer_of_another_shape_is_an_error_of_its_project(
    fake_cloud: FakeCloud, document: Any
) -> None:
    fake_cloud.add("p1")
    cloud = client(fake_cloud)
    projects = cloud.list_projects()
    cloud._get = lambda *_, **__: document  # type: ignore[method-assign]
    (answer,) = cloud.list_commitments(projects)
    assert answer.error.startswith("Limes: ")


def test_passing_failures_are_repeated(fake_cloud: FakeCloud) -> None:
    fake_cloud.add("p1", [limes_commitment(UUID)])
    fake_cloud.faults = {LIMES: [503, 502], "/v3/projects": [500]}
    answers = listed(client(fake_cloud))
    assert len(answers["p1"].commitments) == 1
    assert fake_cloud.seen["/v3/projects"] == 2
    assert sum(n for path, n in fake_cloud.seen.items() if path.startswith(LIMES)) == 3


def test_an_ended_token_is_renewed(fake_cloud: FakeCloud) -> None:
    fake_cloud.add("p1", [limes_commitment(UUID)])
    cloud = client(fake_cloud)
    projects = cloud.list_projects()
    fake_cloud.tokens.clear()
    (answer,) = cloud.list_commitments(projects)
    assert len(answer.commitments) == 1
    assert fake_cloud.seen["login"] == 2


@pytest.mark.parametrize(
    "always",
    [
        pytest.param({"/v3/projects": 500}, id="500"),
        pytest.param({"/v3/projects": 403}, id="not allowed"),
        pytest.param({"/v3/projects": "garbage"}, id="garbage"),
        pytest.param({"/v3/projects": "cut"}, id="cut"),
        pytest.param({"/v3/auth": 503}, id="no login"),
    ],
)
def test_projects_that_cannot_be_listed_are_an_error(
    fake_cloud: FakeCloud, always: dict[str, int | str]
) -> None:
    fake_cloud.add("p1")
    fake_cloud.always = always
    with pytest.raises(CloudUnavailable) as failure:
        client(fake_cloud).list_projects()
    assert failure.value.code == "keystone_unavailable"
    assert "\n" not in failure.value.message


def test_a_list_that_breaks_off_at_its_second_page_is_an_error(fake_cloud: FakeCloud) -> None:
    for number in range(4):
        fake_cloud.add(f"p{number}")
    fake_cloud.page_size = 2
    cloud = client(fake_cloud)
    pages = cloud._project_pages()
    assert [next(pages).project_id, next(pages).project_id] == ["p0", "p1"]
    fake_cloud.always = {"/v3/projects": 500}
    fake_cloud.faults = {}
    with pytest.raises(Exception, match="answered 500"):
        next(pages)


def test_pages_that_follow_each_other_in_a_circle_are_an_error(fake_cloud: FakeCloud) -> None:
    cloud = client(fake_cloud)
    asked: list[str] = []

    def page(url: str, **_: Any) -> Any:
        asked.append(url)
        project = {"id": f"p{len(asked)}", "domain_id": "d"}
        return {"projects": [project], "links": {"next": f"/v3/projects?page={len(asked) % 2}"}}

    cloud._get = page  # type: ignore[method-assign]
    with pytest.raises(CloudUnavailable, match="follow") as failure:
        cloud.list_projects()
    assert failure.value.code == "keystone_unavailable"
    assert len(asked) == 3


@pytest.mark.parametrize("page_size", [1, 1000])
def test_a_list_that_keystone_cuts_short_is_an_error(fake_cloud: FakeCloud, page_size: int) -> None:
    for number in range(4):
        fake_cloud.add(f"p{number}")
    fake_cloud.page_size, fake_cloud.list_limit = page_size, 4
    assert len(client(fake_cloud).list_projects()) == 4
    fake_cloud.list_limit = 3
    with pytest.raises(CloudUnavailable, match="list_limit") as failure:
        client(fake_cloud).list_projects()
    assert failure.value.code == "keystone_unavailable"


def test_no_project_at_all_is_an_error(fake_cloud: FakeCloud) -> None:
    with pytest.raises(CloudUnavailable) as failure:
        client(fake_cloud).list_projects()
    assert failure.value.code == "no_projects"


def test_a_wrong_password_is_an_error(fake_cloud: FakeCloud) -> None:
    with pytest.raises(CloudUnavailable, match="Keystone: "):
        client(fake_cloud, password="wrong").list_projects()


def test_a_service_that_hangs_is_given_up(fake_cloud: FakeCloud) -> None:
    fake_cloud.add("p1")
    fake_cloud.always = {LIMES: "hang"}
    cloud = client(fake_cloud, timeout_seconds=0.2, retries=0)
    (answer,) = cloud.list_commitments([CloudProject(project_id="p1", domain_id="domain-1")])
    assert "timed out" in answer.error


def test_a_keystone_that_hangs_is_given_up(fake_cloud: FakeCloud) -> None:
    """Spec commitments, 16.1: deadline exceeded is an error, no projects."""
    fake_cloud.add("p1")
    fake_cloud.always = {"/v3/projects": "hang"}
    with pytest.raises(CloudUnavailable, match="timed out") as failure:
        client(fake_cloud, timeout_seconds=0.2, retries=0).list_projects()
    assert failure.value.code == "keystone_unavailable"


def test_a_few_projects_are_read_at_a_time(fake_cloud: FakeCloud) -> None:
    for number in range(40):
        fake_cloud.add(f"p{number:02}")
    assert len(listed(client(fake_cloud, concurrency=3))) == 40
    assert 1 <= fake_cloud.most_at_once <= 3


def test_no_more_is_asked_when_too_many_projects_fail() -> None:
    projects = [CloudProject(project_id=str(number), domain_id="d") for number in range(1000)]
    asked = []

    def ask(project: CloudProject) -> ProjectAnswer:
        asked.append(project)
        return ProjectAnswer(project=project, error="down")

    answers = list(answers_of(ask, projects, concurrency=4, most_failed=10))
    assert 10 <= len(answers) <= len(asked) < 40


def test_a_real_keystone_leads_to_limes(fake_cloud: FakeCloud, keystone: Keystone) -> None:
    service_id = keystone.create("service", "limes", type="resources")
    for interface, url in (
        ("public", f"{fake_cloud.url}/limes"),
        ("internal", "http://127.0.0.1:1/internal"),
    ):
        keystone.call(
            "POST",
            "endpoints",
            {
                "endpoint": {
                    "interface": interface,
                    "url": url,
                    "service_id": service_id,
                    "region_id": REGION,
                }
            },
        )
    person = keystone.person("somebody", "member")
    fake_cloud.projects[person.project_id] = "default"
    fake_cloud.commitments[person.project_id] = [limes_commitment(UUID)]
    cloud = HTTPCloud(keystone.settings(), SyncSettings(retries=0))
    projects = cloud.list_projects()
    assert person.project_id in {project.project_id for project in projects}
    fake_cloud.always = {}
    fake_cloud.tokens = _Everything()
    answers = {answer.project.project_id: answer for answer in cloud.list_commitments(projects)}
    assert len(answers[person.project_id].commitments) == 1
    assert all(not answer.error for answer in answers.values())


class _Everything(set[str]):
    """Tokens of another Keystone: the fake cannot know them."""

    def __contains__(self, token: object) -> bool:
        return bool(token)
