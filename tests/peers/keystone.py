"""A real Keystone on a database of its own, for tests that need one.

The first use on a machine makes the environment and a bootstrapped database under
``.local/peers/keystone``; every session starts from a copy of that database, in a second or two.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from config.launcher.demo import choose_port
from config.launcher.environment import pip
from config.launcher.locks import install_arguments, lock_of
from config.launcher.places import locked, this_checkout
from config.launcher.processes import Child, start_child, stop_children, wait_until
from journal.conf import KeystoneSettings

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements-keystone.txt"
ADMIN_PASSWORD = "admin-password-of-tests"  # noqa: S105 - of a Keystone that lives for a session
REGION = "region-a"
PATIENCE_SECONDS = 60.0
REQUEST_SECONDS = 30.0
TEMPLATE_URL = "http://127.0.0.1:1/v3"
CONFIGURATION = """\
[DEFAULT]
use_stderr = true
[database]
connection = sqlite:///{directory}/keystone.db
[token]
provider = fernet
caching = false
[revoke]
caching = false
[fernet_tokens]
key_repository = {directory}/fernet
[fernet_receipts]
key_repository = {directory}/receipts
[credential]
key_repository = {directory}/credential
[cache]
enabled = true
backend = oslo_cache.dict
[identity]
password_hash_rounds = 4
"""


def keystone_home() -> Path:
    """Return where the environment and the bootstrapped database are kept."""
    return this_checkout().local / "peers" / "keystone"


def ensure_keystone() -> Path:
    """Install Keystone and bootstrap its database, unless that is done; return the directory."""
    home = keystone_home()
    pins = hashlib.sha256(lock_of(REQUIREMENTS).read_bytes() + str(sys.version_info[:2]).encode())
    contents = hashlib.sha256(CONFIGURATION.encode() + pins.digest())
    with locked(home.parent / "keystone.lock"):
        if not _is_stamped(home / "venv", pins.hexdigest()):
            shutil.rmtree(home, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(home / "venv")])
            python = home / "venv" / "bin" / "python"
            _run([*pip(python), "--quiet", *install_arguments(REQUIREMENTS)])
            _stamp(home / "venv", pins.hexdigest())
        if not _is_stamped(home / "seed", contents.hexdigest()):
            shutil.rmtree(home / "seed", ignore_errors=True)
            _bootstrap(home)
            _stamp(home / "seed", contents.hexdigest())
    return home


def _is_stamped(directory: Path, stamp: str) -> bool:
    path = directory / "headroom-stamp"
    return path.is_file() and path.read_text(encoding="utf-8") == stamp


def _stamp(directory: Path, stamp: str) -> None:
    (directory / "headroom-stamp").write_text(stamp, encoding="utf-8")


def _bootstrap(home: Path) -> None:
    seed = home / "seed"
    seed.mkdir()
    _configure(seed)
    user = ["--keystone-user", str(os.geteuid()), "--keystone-group", str(os.getegid())]
    urls = [
        part
        for kind in ("public", "internal", "admin")
        for part in (f"--bootstrap-{kind}-url", TEMPLATE_URL)
    ]
    for command in (
        ["db_sync"],
        ["fernet_setup", *user],
        ["receipt_setup", *user],
        ["credential_setup", *user],
        [
            *("bootstrap", "--bootstrap-password", ADMIN_PASSWORD),
            *("--bootstrap-region-id", REGION, *urls),
        ],
    ):
        manage = str(home / "venv" / "bin" / "keystone-manage")
        _run([manage, "--config-file", str(seed / "keystone.conf"), *command])


def _configure(directory: Path) -> None:
    text = CONFIGURATION.format(directory=directory)
    (directory / "keystone.conf").write_text(text, encoding="utf-8")


def _run(command: Sequence[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    assert result.returncode == 0, f"{' '.join(command[:4])}: {result.stderr[-2000:]}"
    return result.stdout.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A user with a project to log in to."""

    name: str
    password: str
    user_id: str
    project_name: str
    project_id: str


@dataclass(slots=True, kw_only=True)
class Keystone:
    """A running Keystone."""

    home: Path
    directory: Path
    port: int
    child: Child | None = None
    ids: dict[tuple[str, str], str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    people: dict[tuple[str, ...], Person] = field(default_factory=dict)
    admin: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v3"

    def start(self) -> None:
        python = str(self.home / "venv" / "bin" / "python")
        self.child = start_child(
            "keystone",
            [python, "-P", str(HERE / "keystone_server.py"), str(self.port)],
            log=self.directory / "keystone.log",
            env={"OS_KEYSTONE_CONFIG_DIR": str(self.directory), "PATH": os.environ["PATH"]},
            cwd=self.directory,
            death_signal=signal.SIGKILL,
        )
        assert wait_until(lambda: self._answers() or self._is_gone(), PATIENCE_SECONDS), self.log()
        assert not self._is_gone(), self.log()

    def stop(self) -> None:
        if self.child is not None:
            stop_children([self.child], ((signal.SIGTERM, 5.0),))
            self.child = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop it for a while; it comes back with all it knew."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def log(self) -> str:
        return (self.directory / "keystone.log").read_text(errors="replace")[-4000:]

    def _answers(self) -> bool:
        try:
            return requests.get(self.url, timeout=1).ok
        except requests.RequestException:
            return False

    def _is_gone(self) -> bool:
        return self.child is None or self.child.process.poll() is not None

    def token(self, person: Person) -> str:
        """Return a token of somebody for the own project, the same for every test."""
        if person.user_id not in self.tokens:
            self.tokens[person.user_id] = self.new_token(person)
        return self.tokens[person.user_id]

    def new_token(self, person: Person, *, scope: Mapping[str, Any] | None = None) -> str:
        """Log somebody in to the own project, or to another scope."""
        user = {"id": person.user_id, "password": person.password}
        return self._log_in(user, scope or {"project": {"id": person.project_id}})

    def _log_in(self, user: Mapping[str, Any], scope: Mapping[str, Any]) -> str:
        identity = {"methods": ["password"], "password": {"user": user}}
        response = requests.post(
            f"{self.url}/auth/tokens",
            json={"auth": {"identity": identity, "scope": scope}},
            timeout=REQUEST_SECONDS,
        )
        assert response.status_code == 201, response.text
        return response.headers["X-Subject-Token"]

    def call(self, method: str, path: str, body: Any = None, *, token: str = "") -> Any:
        """Send a request, as the administrator unless a token is given."""
        response = requests.request(
            method,
            f"{self.url}/{path}",
            json=body,
            headers={"X-Auth-Token": token or self._admin_token()},
            timeout=REQUEST_SECONDS,
        )
        assert response.ok, f"{method} {path}: {response.status_code} {response.text}"
        return response.json() if response.content else None

    def _admin_token(self) -> str:
        if not self.admin:
            user = {
                "name": "admin",
                "domain": {"id": "default"},
                "password": ADMIN_PASSWORD,
            }
            project = {"name": "admin", "domain": {"id": "default"}}
            self.admin = self._log_in(user, {"project": project})
        return self.admin

    def create(self, kind: str, name: str, **fields: Any) -> str:
        """Create something once by name, and return its id."""
        key = (kind, name)
        if key not in self.ids:
            known = self.call("GET", f"{kind}s?name={name}")[f"{kind}s"]
            found = (
                known[0]
                if known
                else self.call("POST", f"{kind}s", {kind: {"name": name, **fields}})[kind]
            )
            self.ids[key] = found["id"]
        return self.ids[key]

    def person(self, name: str, *roles: str, project: str = "operations") -> Person:
        """Return a user who has roles in a project; everything is created when it is missing."""
        if (name, project, *roles) in self.people:
            return self.people[name, project, *roles]
        project_id = self.create("project", project, domain_id="default")
        password = f"password-of-{name}"
        user_id = self.create("user", name, domain_id="default", password=password)
        for role in roles:
            role_id = self.create("role", role)
            self.call("PUT", f"projects/{project_id}/users/{user_id}/roles/{role_id}")
        person = Person(
            name=name,
            password=password,
            user_id=user_id,
            project_name=project,
            project_id=project_id,
        )
        self.people[name, project, *roles] = person
        return person

    def revoke(self, token: str) -> None:
        response = requests.delete(
            f"{self.url}/auth/tokens",
            headers={"X-Auth-Token": self._admin_token(), "X-Subject-Token": token},
            timeout=REQUEST_SECONDS,
        )
        assert response.status_code == 204, response.text

    def aged(self, token: str, seconds: int) -> str:
        """Return a token that ends some seconds earlier, sealed with Keystone's own key."""
        python = str(self.home / "venv" / "bin" / "python")
        keys = str(self.directory / "fernet")
        return _run([python, "-P", str(HERE / "keystone_aging.py"), keys, token, str(seconds)])

    def settings(self, **changes: Any) -> KeystoneSettings:
        """Return our settings for this Keystone: a service user who may validate tokens."""
        service = self.person("headroom", "service", "admin", project="service")
        fields = {
            "auth_url": self.url,
            "username": service.name,
            "password": service.password,
            "project_name": service.project_name,
            "connect_retries": 0,
            "timeout_seconds": REQUEST_SECONDS,
        }
        return KeystoneSettings.model_validate(fields | changes)


def start_keystone(directory: Path, *, port: int = 0, public_port: int = 0) -> Keystone:
    """Start a Keystone from a copy of the bootstrapped database in an empty directory.

    Its catalog names ``public_port``, where somebody else may listen for it.
    """
    home = ensure_keystone()
    shutil.copytree(home / "seed", directory, dirs_exist_ok=True)
    _configure(directory)
    keystone = Keystone(home=home, directory=directory, port=port or choose_port(0))
    public_url = f"http://127.0.0.1:{public_port or keystone.port}/v3"
    with sqlite3.connect(directory / "keystone.db") as database:
        database.execute("UPDATE endpoint SET url = ?", [public_url])
    database.close()
    keystone.start()
    return keystone
