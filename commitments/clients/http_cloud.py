"""Keystone's projects and Limes' commitments over HTTP (spec liquid, 15.1, 15.2)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any, TypeGuard
from urllib.parse import urljoin

from keystoneauth1.exceptions import ClientException
from keystoneauth1.session import Session

from commitments.clients.cloud import CloudProject, CloudUnavailable, ProjectAnswer
from commitments.conf import SyncSettings
from commitments.domain.limes_wire import V1, LimesWire
from journal.conf import KeystoneSettings
from journal.keystone import own_login

Json = Any  # a JSON document as the other side sent it
RETRIABLE_STATUSES = (429, 500, 502, 503, 504)
NOT_FOUND = 404
OK = 200
MOST_PAGES = 100_000
LONGEST_LINE = 500


class HTTPCloud:
    """Keystone and Limes as found in Keystone's catalog, or under configured addresses.

    Tokens are renewed when they end and once on a 401; passing failures are repeated with a growing
    delay. Limes answers only requests to its public name, so public endpoints are used.
    """

    def __init__(
        self, keystone: KeystoneSettings, options: SyncSettings, limes: LimesWire = V1
    ) -> None:
        self._session = Session(
            auth=own_login(keystone),
            verify=keystone.ca_file or True,
            cert=(keystone.cert_file, keystone.key_file) if keystone.cert_file else None,
            timeout=options.timeout_seconds,
            app_name="headroom",
        )
        self._region_name = keystone.region_name or None
        self._options = options
        self._limes = limes

    def list_projects(self) -> Sequence[CloudProject]:
        """Return every project of every page.

        Raises:
            CloudUnavailable: the list could not be read to its end.
        """
        try:
            projects = tuple(self._project_pages())
        except ClientException as error:
            raise CloudUnavailable(short_line(f"Keystone: {error}")) from error
        if not projects:
            raise CloudUnavailable("Keystone lists no project at all", code="no_projects")
        return projects

    def _project_pages(self) -> Iterator[CloudProject]:
        base = self._endpoint("identity", self._options.identity_url, "v3")
        url, asked = f"{base}/projects", set[str]()
        while url not in asked:
            asked.add(url)
            projects, following = _project_page(self._get(url))
            yield from projects
            if not following:
                return
            url = urljoin(f"{base}/", following)
            if len(asked) == MOST_PAGES:
                raise ClientException(f"more than {MOST_PAGES} pages of projects")
        raise ClientException(f"{url}: this page is said to follow itself")

    def list_commitments(self, projects: Sequence[CloudProject]) -> Iterator[ProjectAnswer]:
        """Yield what Limes says of each project, asking for a few at a time."""
        try:
            base = self._endpoint(
                self._limes.catalog_type, self._options.limes_url, self._limes.version
            )
        except ClientException as error:
            problem = short_line(f"Limes: {error}")
            yield from (ProjectAnswer(project=project, error=problem) for project in projects)
            return

        def ask(project: CloudProject) -> ProjectAnswer:
            return self._commitments_of(base, project)

        yield from answers_of(
            ask,
            projects,
            concurrency=self._options.concurrency,
            most_failed=self._options.most_failed_projects,
        )

    def _commitments_of(self, base: str, project: CloudProject) -> ProjectAnswer:
        path = self._limes.commitments_path(
            project_id=project.project_id, domain_id=project.domain_id
        )
        url = f"{base}/{path}"
        try:
            document = self._get(url, is_missing_fine=True)
        except ClientException as error:
            return ProjectAnswer(project=project, error=short_line(f"Limes: {error}"))
        commitments = self._limes.listed(document)
        if commitments is None:
            return ProjectAnswer(project=project, error="Limes: the answer lists no commitments")
        return ProjectAnswer(project=project, commitments=commitments, wire=self._limes)

    def _endpoint(self, service_type: str, configured: str, version: str) -> str:
        found = configured or self._session.get_endpoint(
            service_type=service_type,
            interface="public",
            region_name=self._region_name,
            skip_discovery=True,
        )
        if not found:
            raise ClientException(f"Keystone's catalog has no public endpoint of {service_type}")
        base = str(found).rstrip("/")
        return base if base.endswith(f"/{version}") else f"{base}/{version}"

    def _get(self, url: str, *, is_missing_fine: bool = False) -> Json:
        response = self._session.get(
            url,
            headers={"Accept": "application/json"},
            raise_exc=False,
            connect_retries=self._options.retries,
            connect_retry_delay=self._options.retry_delay_seconds,
            status_code_retries=self._options.retries,
            status_code_retry_delay=self._options.retry_delay_seconds,
            retriable_status_codes=RETRIABLE_STATUSES,
        )
        if response.status_code == NOT_FOUND and is_missing_fine:
            return {"commitments": []}
        if response.status_code != OK:
            raise ClientException(f"{url} answered {response.status_code}")
        try:
            return response.json()
        except ValueError as error:
            raise ClientException(f"{url} answered something else than JSON") from error


def _project_page(page: Json) -> tuple[list[CloudProject], str]:
    """Return the projects of a page, and the address of the next one, empty at the end.

    Raises:
        ClientException: the page has another shape, or Keystone ended the list before its end.
    """
    listed = page.get("projects") if isinstance(page, dict) else None
    links = (page.get("links") or {}) if isinstance(page, dict) else {}
    following = (links.get("next") or "") if isinstance(links, dict) else None
    if (
        not _is_list_of_objects(listed)
        or not isinstance(following, str)
        or not all(isinstance(item.get(key), str) for item in listed for key in ("id", "domain_id"))
    ):
        raise ClientException("a page of projects has another shape")
    if page.get("truncated") and not following:
        raise ClientException("Keystone cut the list of projects short (its setting list_limit)")
    projects = [
        CloudProject(
            project_id=project["id"],
            domain_id=project["domain_id"],
            name=str(project.get("name", "")),
        )
        for project in listed
    ]
    return projects, following


def _is_list_of_objects(found: Json) -> TypeGuard[list[dict[str, Json]]]:
    return isinstance(found, list) and all(isinstance(item, dict) for item in found)


def answers_of(
    ask: Callable[[CloudProject], ProjectAnswer],
    projects: Sequence[CloudProject],
    *,
    concurrency: int,
    most_failed: int,
) -> Iterator[ProjectAnswer]:
    """Ask about projects, a few at a time, and stop asking when too many fail.

    Args:
        ask: Asks about one project; called from threads.
        projects: Which.
        concurrency: Most questions at a time.
        most_failed: Failures after which no more questions are asked.
    """
    waiting = iter(projects)
    failed, stop = 0, threading.Event()

    def ask_unless_stopped(project: CloudProject) -> ProjectAnswer | None:
        return None if stop.is_set() else ask(project)

    pool = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="limes")
    try:
        running: set[Future[ProjectAnswer | None]] = {
            pool.submit(ask_unless_stopped, project) for project in islice(waiting, concurrency * 2)
        }
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                answer = future.result()
                if answer is None:
                    continue
                failed += bool(answer.error)
                if failed >= most_failed:
                    stop.set()
                yield answer
            if not stop.is_set():
                running |= {
                    pool.submit(ask_unless_stopped, project)
                    for project in islice(waiting, len(done))
                }
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)


def short_line(text: str) -> str:
    """Return a text as one line of bounded length."""
    return " ".join(text.split())[:LONGEST_LINE]
