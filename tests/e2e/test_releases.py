"""A release beside its predecessor, on the schema of the newer one, and back again, under load."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from django.db.migrations.loader import MigrationLoader

from config.launcher.demo import choose_port
from config.launcher.places import this_checkout
from config.launcher.processes import Child, start_child, stop_children, wait_until
from core.releases import own_version
from tests.e2e.own_postgres import OwnPostgres, own_postgres
from tests.e2e.processes import WebServer, process_environment
from tests.e2e.test_check_commitments import outcomes, run, url_of
from tests.e2e.test_pooler import TOKENS

pytestmark = pytest.mark.e2e

NOT_COPIED = shutil.ignore_patterns(".git", ".local", ".*_cache", "tests", "docs")
PATIENCE_SECONDS = 180.0
PLACEMENT = {"OpenStack-API-Version": "placement 1.39"}
LOADED_THREADS = 2
REGION = ("--hosts", "12", "--seed", "1", "--vms-per-host", "2", "--commitments", "5")
#: What the next release does to the database: it writes a table that every claim writes.
MIGRATION = """
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("placement", "{leaf}")]
    operations = [
        migrations.RunSQL("CREATE TABLE placement_successor (id bigint PRIMARY KEY)"),
        migrations.RunSQL("ALTER TABLE placement_allocation ADD successor integer DEFAULT 7"),
    ]
"""
FUNCTION = """
CREATE OR REPLACE FUNCTION only_successor() RETURNS integer LANGUAGE sql AS $$ SELECT 1 $$;
"""
CHANGED = ("placement/sql/placement_allocate_new.sql", "placement/sql/placement_changes.sql")
#: What the database has of the next release.
SUCCESSION = """
SELECT count(*) FROM pg_proc AS one
 WHERE proname = 'only_successor'
    OR proname = 'placement_allocate_new' AND prosrc LIKE '%of the release after%'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of the code, and the database it runs on."""

    code: Path
    directory: Path
    database: str

    @property
    def environment(self) -> dict[str, str]:
        given = process_environment(
            self.directory,
            DATABASE_URL=self.database,
            HEADROOM_TOKENS=TOKENS,
            GRANIAN_WORKERS="1",
        )
        del given["PROMETHEUS_MULTIPROC_DIR"]
        return {**given, "HEADROOM_STATE_DIRECTORY": str(self.directory), "PYTHONUNBUFFERED": "1"}

    def manage(self, *arguments: str) -> str:
        done = subprocess.run(  # noqa: S603 - ours
            [sys.executable, "manage.py", *arguments],
            cwd=self.code,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, *arguments: str, **variables: str) -> Child:
        return start_child(
            name,
            [sys.executable, *arguments],
            log=self.directory / f"{name}.log",
            env={**self.environment, **variables},
            cwd=self.code,
            death_signal=signal.SIGKILL,
        )

    @contextmanager
    def serving(self) -> Iterator[WebServer]:
        """Run a web server as an operator would, which looks at the database before it starts."""
        port = choose_port(0)
        child = self.start(f"web-{port}", "run", "serve", "web", GRANIAN_PORT=str(port))
        try:
            web = WebServer(directory=self.directory, port=port)
            assert wait_until(lambda: is_ready(web), PATIENCE_SECONDS), child.log.read_text()
            yield web
        finally:
            stop_children([child], ((signal.SIGTERM, PATIENCE_SECONDS),))


@dataclass(slots=True, kw_only=True)
class Load:
    """Clients that claim, look and give back until told to stop."""

    provider: str
    is_over: threading.Event = field(default_factory=threading.Event)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    counting: threading.Lock = field(default_factory=threading.Lock)

    def run(self, webs: Sequence[WebServer]) -> None:
        for number in range(1_000_000):
            if self.is_over.is_set():
                return
            self.once(webs[number % len(webs)])

    def once(self, web: WebServer) -> None:
        consumer = f"/placement/allocations/{uuid4()}"
        claim = {
            "allocations": {self.provider: {"resources": {"VCPU": 1, "MEMORY_MB": 64}}},
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        }
        self.ask(web, "PUT", consumer, claim)
        self.ask(web, "GET", "/placement/allocation_candidates?resources=VCPU:1&limit=3")
        self.ask(web, "DELETE", consumer)

    def ask(self, web: WebServer, method: str, path: str, body: object = None) -> None:
        try:
            status = web.send(method, path, body, headers=PLACEMENT).status
        except (OSError, http.client.HTTPException):
            status = 0
        with self.counting:
            self.statuses[method, status] += 1

    def failed(self) -> dict[tuple[str, int], int]:
        return {key: count for key, count in self.statuses.items() if not 200 <= key[1] < 300}


@contextmanager
def loaded(provider: str, webs: Sequence[WebServer]) -> Iterator[Load]:
    """Claim at servers meanwhile; no request may fail."""
    load = Load(provider=provider)
    with ThreadPoolExecutor(LOADED_THREADS) as pool:
        running = [pool.submit(load.run, webs) for _ in range(LOADED_THREADS)]
        try:
            yield load
        finally:
            load.is_over.set()
        for one in running:
            one.result()
    assert load.failed() == {}, load.statuses


@pytest.fixture
def postgres(tmp_path: Path, migrated: Path) -> Iterator[OwnPostgres]:
    with own_postgres(tmp_path, os.environ, migrated) as server:
        yield server


@pytest.fixture
def predecessor(postgres: OwnPostgres, tmp_path: Path) -> Version:
    """This version, with a region."""
    place = tmp_path / "now"
    place.mkdir()
    version = Version(code=this_checkout().root, directory=place, database=postgres.url)
    region = str(place / "region.json")
    version.manage("generate_region", *REGION, "--output", region)
    version.manage("import_region", region)
    return version


@pytest.fixture
def successor(predecessor: Version, tmp_path: Path) -> Version:
    """What may be released next: one more migration, functions that changed, and a new one."""
    place, code = tmp_path / "then", tmp_path / "then" / "code"
    place.mkdir()
    shutil.copytree(predecessor.code, code, ignore=NOT_COPIED)
    (code / ".local").mkdir()
    (code / ".local/venv").symlink_to(this_checkout().venv)
    (leaf,) = MigrationLoader(None).graph.leaf_nodes("placement")
    migration = code / "placement/migrations/9999_successor.py"
    migration.write_text(MIGRATION.format(leaf=leaf[1]))
    (code / "core/sql").mkdir(exist_ok=True)
    (code / "core/sql/only_successor.sql").write_text(FUNCTION)
    for name in CHANGED:
        path = code / name
        path.write_text(path.read_text().replace("BEGIN\n", "BEGIN  -- of the release after\n", 1))
        assert "release after" in path.read_text()
    project = code / "pyproject.toml"
    version = f'version = "{own_version()}"'
    project.write_text(project.read_text().replace(version, f'{version[:-1]}.1"', 1))
    return Version(code=code, directory=place, database=predecessor.database)


def is_ready(web: WebServer) -> bool:
    """Return whether it may be sent requests; a probe of a busy machine may come too late."""
    try:
        return web.send("GET", "/readyz").status == 200
    except (OSError, http.client.HTTPException):
        return False


def make_provider(web: WebServer) -> str:
    provider = str(uuid4())
    steps: list[tuple[str, str, dict[str, object]]] = [
        ("POST", "/placement/resource_providers", {"uuid": provider, "name": "loaded"}),
        (
            "PUT",
            f"/placement/resource_providers/{provider}/inventories",
            {
                "resource_provider_generation": 0,
                "inventories": {"VCPU": {"total": 64}, "MEMORY_MB": {"total": 65536}},
            },
        ),
    ]
    for method, path, body in steps:
        answer = web.send(method, path, body, headers=PLACEMENT)
        assert answer.status == 200, answer.body
    return provider


def succession(postgres: OwnPostgres) -> object:
    with postgres.connect() as link:
        return (link.execute(SUCCESSION).fetchone() or (None,))[0]


@contextmanager
def reading_for_long(postgres: OwnPostgres) -> Iterator[Callable[[], None]]:
    """Hold what a migration needs, as a long report does; yields what ends it."""
    with postgres.connect() as link:
        link.autocommit = False
        link.execute("SELECT count(*) FROM placement_allocation")
        yield link.commit


def test_two_releases_serve_beside_each_other_and_the_newer_is_taken_back(
    postgres: OwnPostgres, predecessor: Version, successor: Version, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        old = stack.enter_context(predecessor.serving())
        provider = make_provider(old)
        with loaded(provider, [old]), reading_for_long(postgres) as end_report:
            migrating = successor.start("migrate", "manage.py", "migrate")
            told = migrating.log.read_text
            assert wait_until(lambda: "again in" in told(), PATIENCE_SECONDS), told()
            end_report()
            assert migrating.process.wait() == 0, told()
        assert succession(postgres) == 2

        new = stack.enter_context(successor.serving())
        with loaded(provider, [old, new]):
            assert limes_is_content(old, tmp_path)
            assert limes_is_content(new, tmp_path)

        # Back: the older starts on what the newer has made of the database, and leaves it so.
        again = stack.enter_context(predecessor.serving())
        with loaded(provider, [new, again]):
            said = predecessor.manage("migrate")
            assert limes_is_content(again, tmp_path)
        assert f"Release {own_version()}.1 has migrated this database" in said
        assert succession(postgres) == 2
        usages = again.send("GET", f"/placement/resource_providers/{provider}/usages")
        assert usages.json()["usages"] == {"VCPU": 0, "MEMORY_MB": 0}  # all was given back


def limes_is_content(web: WebServer, directory: Path) -> bool:
    """Play Limes: commitments are made, confirmed, transferred and deleted again."""
    lines = run(url_of(web), "--zone=az-a", folder=directory)
    assert outcomes(lines) <= {"passed", "full"}, lines
    return any(line["outcome"] == "passed" for line in lines)
