"""``bench pages``: statements and time of each page of the console, warm, in a large region."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Count, Model, QuerySet
from django.test import Client
from django.urls import reverse
from django.utils.http import urlencode
from rich.console import Console
from rich.table import Table

from benchmarks.bench_region import TOKEN, with_token
from benchmarks.measures import ROOT, Measure, measure
from benchmarks.pages_region import VMS_PER_HOST
from capacity.models import GroupCapacity
from commitments.models import Commitment
from console.api.paging import MOST_ROWS
from console.api.urls import LISTS
from console.urls import urlpatterns
from failover.drill_models import CoverageAccount
from hosts.models import Aggregate, Host, Instance, Project
from journal.auth import TOKEN_HEADER

TARGET_HOSTS: Final = 10_000
QUICK_HOSTS: Final = 1_000
MOST_STATEMENTS: Final = 30
MOST_MS: Final = 1000.0
OPENINGS: Final = 5
SHOWN_CHARACTERS: Final = 70
FOUND: Final = 200
#: Rows whose pages show most, each by a column that says so.
RICHEST: Final[dict[type[Model], str]] = {Host: "instances", Commitment: "slots"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page to open.

    Attributes:
        kind: ``list``, ``form`` or ``page`` of the console, or a list of the ``api``.
    """

    kind: str
    name: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a page took, warm.

    Attributes:
        statements: How many its last opening sent.
        milliseconds: Median of all openings.
        slowest_ms: Of its slowest statement, in any opening.
        slowest: That statement.
    """

    page: Page
    statements: int
    milliseconds: float
    slowest_ms: float
    slowest: str

    @property
    def is_within(self) -> bool:
        """Whether both limits are kept."""
        return self.statements <= MOST_STATEMENTS and self.milliseconds <= MOST_MS


def run(*, is_quick: bool) -> list[Measure]:
    """Open every page of the console as a superuser, and every list of the operator API."""
    hosts = QUICK_HOSTS if is_quick else TARGET_HOSTS
    Console().print(f"filling {hosts} hosts")
    _fill(hosts)
    opened = measured_pages()
    _print(opened)
    size = f"{hosts} hosts, {hosts * VMS_PER_HOST} VMs"
    return list(_rows(opened, size))


def measured_pages() -> list[Opened]:
    """Open each page of the console as a superuser, and each list of the operator API."""
    client = _signed_in()
    opened = [_opened(client, page) for page in pages()]
    with with_token():
        caller = Client(SERVER_NAME=client.defaults["SERVER_NAME"], headers={TOKEN_HEADER: TOKEN})
        opened += [_opened(caller, page) for page in api_lists()]
    return opened


def pages() -> Iterator[Page]:
    """Return every list and a form of it, and every page that answers a question."""
    for model, model_admin in sorted(
        admin.site._registry.items(),  # noqa: SLF001 - the one list of what is registered
        key=lambda pair: pair[0]._meta.label,  # noqa: SLF001 - Django's documented model API
    ):
        meta = model._meta  # noqa: SLF001 - Django's documented model API
        name = str(meta.verbose_name_plural)
        listed = reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist")
        yield Page(kind="list", name=name, address=listed)
        if model_admin.search_fields:
            yield Page(kind="list", name=f"{name}, searched", address=f"{listed}?q=node001")
        row = _row_of(model)
        if row is not None:
            change = reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row.pk])
            yield Page(kind="form", name=name, address=change)
    yield from _answers()


def api_lists() -> Iterator[Page]:
    """Return a usual page and the longest one of each list of the operator API."""
    for view in LISTS:
        name = view.path_label
        yield Page(kind="api", name=name, address=name)
        yield Page(
            kind="api", name=f"{name}, {MOST_ROWS} rows", address=f"{name}?limit={MOST_ROWS}"
        )


def _row_of(model: type[Model]) -> Model | None:
    """Return the newest row of a table, or the one that most hangs on."""
    rows: QuerySet[Model] = model._default_manager.order_by("-pk")  # noqa: SLF001 - Django's documented API
    if model in RICHEST:
        rows = rows.annotate(hanging=Count(RICHEST[model])).order_by("-hanging", "-pk")
    return rows.first()


def _answers() -> Iterator[Page]:
    """Return the console's own pages, those with a question after the same without one."""
    named: dict[str, dict[str, object]] = {
        "headroom_sell_group": {"pk": _key(GroupCapacity)},
        "headroom_project": {"pk": _largest_project()},
        "headroom_host_drain": {"pk": _key(Host)},
        "headroom_vm": {"vm_uuid": _key(Instance, "openstack_id")},
    }
    host = Host.objects.order_by("pk").first()
    commitment = Commitment.objects.order_by("pk").first()
    aggregate = Aggregate.objects.order_by("pk").first()
    if host is None or commitment is None or aggregate is None:
        raise RuntimeError("the region is empty")
    asked: dict[str, dict[str, dict[str, str]]] = {
        "headroom_search": {
            "a host": {"q": host.name},
            "how names begin": {"q": "node"},
            "parts of names": {"q": "ode0"},
            "a commitment": {"q": commitment.commitment_uuid},
            "a project": {"q": commitment.project_id},
        },
        "headroom_sell_group": {"1,000 GiB": {"amount_gib": "1000"}},
        "headroom_drill": {
            "a host": {"hosts": host.name},
            "an aggregate": {"aggregate": aggregate.uuid},
            "a zone": {"zone": host.zone},
        },
        "headroom_projects": {"most held": {"order": "held"}},
    }
    yield Page(kind="page", name="overview", address=reverse("admin:index"))
    account = _key(CoverageAccount)
    yield Page(
        kind="page",
        name="coverage troubles",
        address=reverse("admin:failover_coverageaccount_troubles", args=[account]),
    )
    for pattern in urlpatterns:
        name = str(pattern.name)
        address = reverse(name, kwargs=named.get(name))
        words = name.removeprefix("headroom_").replace("_", " ")
        yield Page(kind="page", name=words, address=address)
        for said, question in asked.get(name, {}).items():
            yield Page(
                kind="page", name=f"{words}: {said}", address=f"{address}?{urlencode(question)}"
            )


def _key(model: type[Model], column: str = "pk") -> object:
    manager = model._default_manager  # noqa: SLF001 - Django's documented model API
    return manager.order_by("pk").values_list(column, flat=True).first()


def _largest_project() -> object:
    """Return the key of the project with most VMs."""
    busiest = (
        Instance.objects.values_list("project_id").annotate(Count("pk")).order_by("-pk__count")
    )[0][0]
    return Project.objects.values_list("pk", flat=True).get(openstack_id=busiest)


def _fill(hosts: int) -> None:
    """Fill the database in a process that has the time of a command, not that of a request."""
    environment = {**os.environ}
    environment.pop("HEADROOM_PROCESS", None)
    words = "from benchmarks.pages_region import fill_pages_region as fill; "
    subprocess.run(  # noqa: S603 - our own command
        [sys.executable, str(ROOT / "manage.py"), "shell", "-v0", "-c", f"{words}fill({hosts})"],
        check=True,
        env=environment,
    )


def _signed_in() -> Client:
    user, _ = User.objects.get_or_create(
        username="bench", defaults={"is_staff": True, "is_superuser": True}
    )
    client = Client(SERVER_NAME=settings.ALLOWED_HOSTS[0].lstrip("*.") or "localhost")
    client.force_login(user)
    return client


def _opened(client: Client, page: Page) -> Opened:
    _open(client, page)
    taken: list[float] = []
    slowest = (0.0, "")
    statements: list[tuple[float, str]] = []
    for _ in range(OPENINGS):
        statements.clear()
        before = time.perf_counter()
        with connection.execute_wrapper(_noting(statements)):
            _open(client, page)
        taken.append((time.perf_counter() - before) * 1000)
        slowest = max([slowest, *statements])
    return Opened(
        page=page,
        statements=len(statements),
        milliseconds=median(taken),
        slowest_ms=slowest[0],
        slowest=" ".join(slowest[1].split()),
    )


def _open(client: Client, page: Page) -> None:
    status = client.get(page.address, follow=True).status_code
    if status != FOUND:
        raise RuntimeError(f"{page.address} answers {status}")


def _noting(statements: list[tuple[float, str]]) -> Callable[..., Any]:
    """Return a wrapper of Django's cursors that notes milliseconds and text of each statement."""

    def noted(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:  # Any: Django's signature
        before = time.perf_counter()
        try:
            return execute(sql, *rest)
        finally:
            statements.append(((time.perf_counter() - before) * 1000, sql))

    return noted


def _print(opened: list[Opened]) -> None:
    table = Table(title="pages, the slowest first")
    for heading in ("page", "statements", "ms", "slowest statement, ms", ""):
        table.add_column(heading, justify="left" if heading in {"page", ""} else "right")
    for one in sorted(opened, key=lambda one: -one.milliseconds):
        table.add_row(
            f"{one.page.kind}: {one.page.name}",
            str(one.statements),
            f"{one.milliseconds:.0f}",
            f"{one.slowest_ms:.0f}",
            one.slowest[:SHOWN_CHARACTERS],
            style="" if one.is_within else "red",
        )
    Console(width=180).print(table)


def _rows(opened: list[Opened], size: str) -> Iterator[Measure]:
    """Return figures of each own page, of the worst list and form, and of all beyond a limit."""
    for one in opened:
        if one.page.kind == "page" or not one.is_within:
            label = f"{one.page.kind} {one.page.name}" if one.page.kind != "page" else one.page.name
            yield measure(label, size, one.milliseconds, "ms", at_most=MOST_MS)
            yield measure(f"{label}, statements", size, one.statements, "", at_most=MOST_STATEMENTS)
    for kind, words in (("list", "lists"), ("form", "forms"), ("api", "pages of API lists")):
        found = [one for one in opened if one.page.kind == kind]
        label = f"{len(found)} {words}"
        times = [one.milliseconds for one in found]
        most = max(one.statements for one in found)
        yield measure(f"{label}, median", size, median(times), "ms")
        yield measure(f"{label}, slowest", size, max(times), "ms", at_most=MOST_MS)
        yield measure(f"{label}, most statements", size, most, "", at_most=MOST_STATEMENTS)
