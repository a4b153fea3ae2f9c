"""The proxy of ``docs/deployment.md``: nginx runs it in front of what is served."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from headroom_host_agent.server.identity import Identity

from config.launcher.demo import ADDRESS, choose_port
from config.launcher.processes import wait_until
from tests.docs.tour import ROOT
from tests.e2e.processes import ADMIN, PATIENCE_SECONDS, Answer, WebServer
from tests.hosts.agents.agents import signed
from tests.hosts.agents.test_held_polls import Role, agents, ask_for, ids

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")
OPENSSL = shutil.which("openssl")
NAME = "headroom.example.com"
MIB = 1 << 20
JSON = {"Content-Type": "application/json", "X-Auth-Token": ADMIN}
NOTHING: Mapping[str, str] = MappingProxyType({})
BEHIND_TLS = {
    "HEADROOM_ALLOWED_HOSTS": NAME,
    "HEADROOM_CSRF_TRUSTED_ORIGINS": f"https://{NAME}",
    "HEADROOM_SECURE_COOKIES": "true",
    "HEADROOM_ADMIN__PROXY_COUNT": "1",
    "HEADROOM_ADMIN__LOGIN_FAILURES": "3",
    "HEADROOM_PLACEMENT__TRUSTED_PROXY_HEADERS": "true",
    "HEADROOM_TOKENS": json.dumps(
        [{"token": ADMIN, "name": "nova", "roles": ["cloud_resource_admin", "admin", "service"]}]
    ),
}
AROUND = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{}}
http {{
    access_log off;
    {places}
    {example}
}}
"""
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.e2e,
    pytest.mark.skipif(
        NGINX is None or OPENSSL is None,
        reason="nginx or openssl is not installed (Debian: nginx-light openssl): NOT proxied",
    ),
]


def example() -> str:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"```nginx\n(.+?)```", page, re.DOTALL)
    return str(found)


@dataclass(slots=True, kw_only=True)
class Proxy:
    """nginx with the example, on free ports, with a certificate of its own."""

    folder: Path
    web: WebServer
    role: Role
    plain_port: int = field(default_factory=lambda: choose_port(0))
    tls_port: int = field(default_factory=lambda: choose_port(0))
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
        made += ["-addext", f"subjectAltName=DNS:{NAME}"]
        made += ["-keyout", f"{self.folder}/headroom.key", "-out", f"{self.folder}/headroom.crt"]
        subprocess.run([str(OPENSSL), *made], check=True, capture_output=True)  # noqa: S603 - ours
        text = example()
        for ours, theirs in {
            "listen 80;": f"listen {ADDRESS}:{self.plain_port};",
            "listen 443 ssl;": f"listen {ADDRESS}:{self.tls_port} ssl;",
            "/etc/nginx/tls/": f"{self.folder}/",
            "http://127.0.0.1:8000;": f"http://{ADDRESS}:{self.web.port};",
            "http://127.0.0.1:8001;": f"http://{ADDRESS}:{self.role.port};",
        }.items():
            assert ours in text
            text = text.replace(ours, theirs)
        places = "".join(f"{name}_temp_path {self.folder}/{name};\n" for name in TEMPORARY)
        config = self.folder / "nginx.conf"
        config.write_text(AROUND.format(folder=self.folder, places=places, example=text))
        with (self.folder / "nginx.err").open("wb") as said:
            self.process = subprocess.Popen(  # noqa: S603 - ours
                [str(NGINX), "-p", str(self.folder), "-c", str(config)],
                stdout=subprocess.DEVNULL,
                stderr=said,
            )
        assert wait_until(self.listens, PATIENCE_SECONDS), self.said()

    def listens(self) -> bool:
        try:
            socket.create_connection((ADDRESS, self.tls_port), 1).close()
        except OSError:
            return False
        return True

    def said(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("nginx.*[rg]"))

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def link(self, *, tls: bool = True) -> http.client.HTTPConnection:
        port = self.tls_port if tls else self.plain_port
        made = http.client.HTTPConnection(ADDRESS, port, timeout=PATIENCE_SECONDS)
        plain = socket.create_connection((ADDRESS, port), PATIENCE_SECONDS)
        context = ssl.create_default_context(cafile=f"{self.folder}/headroom.crt")
        made.sock = context.wrap_socket(plain, server_hostname=NAME) if tls else plain
        return made

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        tls: bool = True,
        headers: Mapping[str, str] = NOTHING,
    ) -> Answer:
        link = self.link(tls=tls)
        try:
            link.request(method, path, body=body, headers={"Host": NAME, **headers})
            response = link.getresponse()
            names = {name.lower(): text for name, text in response.getheaders()}
            return Answer(status=response.status, headers=names, body=response.read())
        finally:
            link.close()

    def log_in(self, password: str, *, forwarded: str = "") -> Answer:
        page = self.send("GET", "/admin/login/")
        token = SimpleCookie(page.headers["set-cookie"])["csrftoken"].value
        form = {"username": "ann", "password": password, "csrfmiddlewaretoken": token}
        return self.send(
            "POST",
            "/admin/login/",
            urlencode(form).encode(),
            headers={
                "Content-Type": "application/x-www-form-urlencoded",
                "Cookie": f"csrftoken={token}",
                "Origin": f"https://{NAME}",
                "Referer": f"https://{NAME}/admin/login/",
                **({"X-Forwarded-For": forwarded} if forwarded else {}),
            },
        )


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("proxy")
    web = WebServer(directory=folder, overrides=BEHIND_TLS)
    role = Role(folder, HEADROOM_ALLOWED_HOSTS=NAME)
    made = Proxy(folder=folder, web=web, role=role)
    try:
        web.start()
        role.start()
        made.start()
        yield made
    finally:
        for one in (made, role, web):
            one.end()


def test_without_tls_everybody_is_sent_to_the_same_page_with_it(proxy: Proxy) -> None:
    answer = proxy.send("GET", "/admin/?q=a%2Fb", tls=False)
    assert (answer.status, answer.headers["location"]) == (301, f"https://{NAME}/admin/?q=a%2Fb")


def test_somebody_logs_in_and_cookies_are_for_tls_alone(proxy: Proxy) -> None:
    User.objects.create_superuser("ann", password="her password")

    refused, taken = proxy.log_in("another"), proxy.log_in("her password")

    assert (refused.status, taken.status) == (200, 302)
    session = SimpleCookie(taken.headers["set-cookie"])["sessionid"]
    assert session["secure"]
    page = proxy.send("GET", "/admin/", headers={"Cookie": f"sessionid={session.value}"})
    assert (page.status, b"ann" in page.body) == (200, True)
    assert page.headers["strict-transport-security"] == "max-age=31536000"


def test_failed_logins_are_counted_for_the_caller_whoever_he_says_he_is(proxy: Proxy) -> None:
    User.objects.create_superuser("ann", password="her password")

    statuses = [proxy.log_in("wrong", forwarded=f"192.0.2.{number}").status for number in range(6)]

    assert statuses[0] == 200
    assert statuses[-1] == 429


def test_another_name_is_refused(proxy: Proxy) -> None:
    answer = proxy.send("GET", "/commitments/v1/info", headers={"Host": "other.example.com"})
    assert answer.status == 400


def test_placement_names_itself_as_callers_do(proxy: Proxy) -> None:
    answer = proxy.send(
        "POST",
        "/placement/resource_providers",
        json.dumps({"name": "a/b", "uuid": "11111111-2222-4333-8444-555555555555"}).encode(),
        headers={
            **JSON,
            "X-Forwarded-Proto": "gopher",
            "X-Forwarded-Host": "evil.example.com",
        },
    )
    assert answer.status == 201, answer.body
    place = "/placement/resource_providers/11111111-2222-4333-8444-555555555555"
    assert answer.headers["location"] == f"https://{NAME}{place}"


@pytest.mark.parametrize(("mib", "status"), [(15, 400), (17, 413)])
def test_the_limit_of_a_body_is_that_of_headroom(proxy: Proxy, mib: int, status: int) -> None:
    body = b'{"spec": "' + b"x" * (mib * MIB) + b'"}'
    answer = proxy.send(
        "POST",
        "/scheduler/nova/external",
        body,
        headers=JSON,
    )
    assert answer.status == status, answer.body[:500]
    assert b"nginx" not in answer.body


def poll(proxy: Proxy, identity: Identity) -> Answer:
    path = f"/hosts/v1/{identity.host_id}/reservations"
    query = {"from": "0", "wait": "25"}
    asked = signed(identity, method="GET", path=path, body=b"", query=tuple(query.items()))
    return proxy.send("GET", f"{path}?{urlencode(query)}", headers=asked.headers)


def test_a_poll_is_held_through_it_until_there_is_something(proxy: Proxy) -> None:
    (identity,) = agents("h1")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(poll, proxy, identity)
        assert wait_until(lambda: proxy.role.waiters() == 1, PATIENCE_SECONDS), proxy.role.log()
        ask_for(identity, 42)
        assert [one.partition("-")[0] for one in ids(answer.result(PATIENCE_SECONDS))] == ["42"]
