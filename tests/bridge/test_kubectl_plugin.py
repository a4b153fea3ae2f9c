"""The kubectl plug-in: the real kubectl, a real API server, a served Headroom."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from config.launcher.places import this_checkout
from tests.api.conftest import configure, liquid  # noqa: F401 - fixtures
from tests.api.liquid_client import MEMBER, VIEWER, LiquidClient
from tests.factories import (
    make_commitment,
    make_domain,
    make_group,
    make_host,
    make_project,
    make_slot,
    make_vm,
)
from tests.kube.programs import kubectl
from tests.kube.server import Cluster

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

SOURCE = this_checkout().root / "clients" / "kubectl" / "kubectl_headroom.py"
ANYBODY = "admin"
Plugin = Callable[..., "subprocess.CompletedProcess[str]"]
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "headroom"}}


@pytest.fixture
def plugin(
    api_server: Cluster, live_server: Any, settings: Any, tmp_path: Path
) -> Callable[..., Any]:
    """Run ``kubectl headroom`` as its users do."""
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "noauth"})
    installed = tmp_path / "kubectl-headroom"
    source = SOURCE.read_text(encoding="utf-8")
    installed.write_text(source.replace("#!/usr/bin/env python3", f"#!{sys.executable}", 1))
    installed.chmod(installed.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "kubectl").symlink_to(kubectl())
    found = {**CONFIG_MAP, "data": {"url": live_server.url}}
    api_server.kubectl("apply", "-n", "default", "-f", "-", stdin=json.dumps(found))

    def run(
        *words: str,
        token: str = ANYBODY,
        namespace: str = "default",
        stdout: Any = subprocess.PIPE,
        **more: str,
    ) -> Any:
        chosen = ["-n", namespace] if namespace else []
        return subprocess.run(  # noqa: S603 - a test's own words
            [str(tmp_path / "kubectl"), "headroom", *chosen, *words],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
            env={
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "KUBECONFIG": str(api_server.kubeconfig),
                "HOME": str(tmp_path),
                "HEADROOM_TOKEN": token,
                **more,
            },
        )

    return run


@pytest.fixture
def region() -> str:
    """Two hosts, a commitment with a slot and a VM in it; return its uuid."""
    make_domain()
    make_project()
    make_group()
    host = make_host("h1", memory_gib=64, vcpus=32)
    make_host("h2", memory_gib=64, vcpus=32)
    commitment = make_commitment()
    slot = make_slot(commitment, host, memory_gib=8, vcpus=2)
    make_vm(host=host, openstack_id="vm-1", memory_gib=8, vcpus=2, slot=slot)
    return str(commitment.commitment_uuid)


def test_explain(plugin: Plugin, region: str) -> None:
    done = plugin("explain", region)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"commitment {region}: ")
    assert "on h1" in done.stdout
    assert "VM vm-1 confirmed" in done.stdout
    told = json.loads(plugin("-o", "json", "explain", region).stdout)
    assert [slot["host"] for slot in told["slots"]] == ["h1"]


def test_a_commitment_may_be_called_as_kubectl_calls_it(plugin: Plugin, region: str) -> None:
    for name in (
        f"commitment-{region}",
        f"committedresource.cortex.cloud/commitment-{region}",
        f"cres/commitment-{region}.r2",
    ):
        assert plugin("explain", name).stdout.startswith(f"commitment {region}: "), name


def test_what_is_of_kubectl_may_come_last(
    plugin: Plugin, region: str, api_server: Cluster, tmp_path: Path
) -> None:
    there = {"KUBECONFIG": str(tmp_path / "none"), "namespace": ""}
    kubeconfig = ("--kubeconfig", str(api_server.kubeconfig))
    last = ("-n", "default", "-o", "json", *kubeconfig)
    done = plugin("drain-check", "h2", *last, **there)
    assert (done.returncode, json.loads(done.stdout)["safe"]) == (0, True), done.stderr
    done = plugin(*kubeconfig, "-n", "default", "drain-check", "h2", **there)
    assert (done.returncode, done.stdout) == (0, "h2: safe\n"), done.stderr
    nobody = plugin("drain-check", "h2", "--context", "nobody-such")
    assert (nobody.returncode, "nobody-such" in nobody.stderr) == (2, True)


def test_the_token_may_stand_in_a_file(plugin: Plugin, region: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{ANYBODY}\n")
    done = plugin("explain", region, token="", HEADROOM_TOKEN_FILE=str(file))
    assert done.returncode == 0, done.stderr
    lost = plugin("explain", region, token="", HEADROOM_TOKEN_FILE=str(tmp_path / "none"))
    assert no_answer(lost).startswith("error: HEADROOM_TOKEN_FILE: ")


def test_help_names_all_commands(plugin: Plugin) -> None:
    done = plugin("--help", namespace="")
    assert done.returncode == 0
    for word in ("explain", "what-if", "drain-check", "--kubeconfig", "--context"):
        assert word in done.stdout
        if not word.startswith("-"):
            about = plugin(word, "--help")
            assert (about.returncode, "--namespace" in about.stdout) == (0, True)
    wrong = plugin("drain-check")
    assert (wrong.returncode, "required: HOST" in wrong.stderr) == (2, True)


def no_answer(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line that says why there is no answer."""
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


CLOSED = "127.0.0.1:9"


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({"url": f"http://{CLOSED}"}, "refused"),
        ({"url": "http://[half"}, "no url of http or https"),
        ({"url": "http://host:port"}, "no url of http or https"),
        ({"url": "https://"}, "no url of http or https"),
        ({}, "no url of http or https"),
        ({"url": f"https://{CLOSED}", "ca.crt": "mine"}, "ca.crt of the ConfigMap headroom: "),
    ],
)
def test_a_wrong_config_map_is_told_in_one_line(
    plugin: Plugin, api_server: Cluster, found: dict[str, str], problem: str
) -> None:
    told = json.dumps({**CONFIG_MAP, "data": found})
    api_server.kubectl("replace", "-n", "default", "-f", "-", stdin=told)
    assert problem in no_answer(plugin("drain-check", "h1"))


def test_a_certificate_of_ones_own_is_believed(plugin: Plugin, api_server: Cluster) -> None:
    """At an HTTPS server that is not Headroom: only whom its certificate is shown hears it."""
    view = api_server.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json")
    about = json.loads(view)["clusters"][0]["cluster"]
    if "certificate-authority-data" not in about:
        pytest.skip("the cluster's certificate is one that machines trust anyway")
    certificate = b64decode(about["certificate-authority-data"]).decode()
    found = {"url": about["server"]}
    told = json.dumps({**CONFIG_MAP, "data": found})
    api_server.kubectl("replace", "-n", "default", "-f", "-", stdin=told)
    assert "CERTIFICATE_VERIFY_FAILED" in no_answer(plugin("drain-check", "h1"))
    told = json.dumps({**CONFIG_MAP, "data": {**found, "ca.crt": certificate}})
    api_server.kubectl("replace", "-n", "default", "-f", "-", stdin=told)
    assert "/api/v1/failover/drain-check: status 40" in no_answer(plugin("drain-check", "h1"))


def test_a_cluster_that_is_away_is_told_in_one_line(plugin: Plugin, tmp_path: Path) -> None:
    away = tmp_path / "away"
    cluster = {"name": "c", "cluster": {"server": f"http://{CLOSED}"}}
    context = {"name": "c", "context": {"cluster": "c"}}
    away.write_text(
        json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "c"})
    )
    said = no_answer(plugin("drain-check", "h1", "--kubeconfig", str(away)))
    assert "refused" in said


def test_a_token_that_is_none_is_never_printed(plugin: Plugin) -> None:
    said = no_answer(plugin("explain", "x", token="se\ncret"))
    assert "odd characters" in said
    assert "cret" not in said


def test_whoever_reads_no_further_gets_no_traceback(plugin: Plugin, region: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as stream:
        done = plugin("explain", region, stdout=stream)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_nobody_knows_is_no_answer(plugin: Plugin, region: str) -> None:
    done = plugin("explain", "nobody/../x?y")
    assert done.returncode == 2
    assert "no commitment nobody" in plugin("explain", "nobody").stderr
    assert "unknown_commitment" in plugin("explain", "nobody").stderr


def test_drain_check(plugin: Plugin, region: str) -> None:
    safe = plugin("drain-check", "h2")
    assert (safe.returncode, safe.stdout) == (0, "h2: safe\n")
    both = plugin("drain-check", "h1", "h2")
    assert (both.returncode, both.stdout.splitlines()[0]) == (1, "h1, h2: not safe to drain")
    unknown = plugin("drain-check", "h9")
    assert (unknown.returncode, "h9" in unknown.stderr) == (2, True)


def test_what_if(plugin: Plugin, region: str, tmp_path: Path) -> None:
    asked = ("--zone", "az-a", "--project", "project-1", "--resource", "hw_version_hana_1_ram")
    accepted = plugin("what-if", *asked, "--amount", "4")
    refused = plugin("what-if", *asked, "--amount", "4000", "--drained", "h2", "--added", "h1=1")
    assert (accepted.returncode, accepted.stdout.splitlines()[0]) == (0, "accepted")
    assert (refused.returncode, refused.stdout.splitlines()[0]) == (1, "refused")
    assert "what-if needs --amount" in plugin("what-if", *asked).stderr
    file = tmp_path / "question.json"
    file.write_text("{")
    assert plugin("what-if", "-f", str(file)).returncode == 2
    assert (
        "a host and a number" in plugin("what-if", *asked, "--amount", "1", "--added", "h").stderr
    )


def test_whoever_cannot_ask_is_told_why(plugin: Plugin, api_server: Cluster, settings: Any) -> None:
    assert "HEADROOM_TOKEN or HEADROOM_TOKEN_FILE" in plugin("explain", "x", token="").stderr
    assert "not found" in plugin("explain", "x", namespace="kube-public").stderr
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"auth": "token"})
    assert "401" in plugin("explain", "x").stderr
    wrong = {**CONFIG_MAP, "data": {"url": "file:///etc/hostname"}}
    api_server.kubectl("apply", "-n", "default", "-f", "-", stdin=json.dumps(wrong))
    assert "no url of http or https" in plugin("explain", "x").stderr


def test_the_token_follows_no_redirect(plugin: Plugin, api_server: Cluster) -> None:
    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            found = {**CONFIG_MAP, "data": {"url": f"http://127.0.0.1:{server.server_port}"}}
            api_server.kubectl("apply", "-n", "default", "-f", "-", stdin=json.dumps(found))
            done = plugin("explain", "x")
        finally:
            server.shutdown()
    assert (done.returncode, len(asked)) == (2, 1), done.stderr
    assert "302" in done.stderr


def test_what_headroom_would_not_say_is_no_answer(plugin: Plugin, api_server: Cluster) -> None:
    answers = [b"{}", b"[]", b"<html>", b""]

    class Another(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers.pop(0))

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Another) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            found = {**CONFIG_MAP, "data": {"url": f"http://127.0.0.1:{server.server_port}"}}
            api_server.kubectl("apply", "-n", "default", "-f", "-", stdin=json.dumps(found))
            for _ in range(2):
                assert "no answer of Headroom" in no_answer(plugin("drain-check", "h1"))
            for _ in range(2):
                assert "Expecting value" in no_answer(plugin("-o", "json", "drain-check", "h1"))
        finally:
            server.shutdown()


@pytest.mark.parametrize(("token", "status"), [(VIEWER, 200), (MEMBER, 403), ("", 401)])
def test_explanations_are_for_readers(
    liquid: LiquidClient,  # noqa: F811 - the fixture
    region: str,
    token: str,
    status: int,
) -> None:
    assert liquid
    path = f"/api/v1/explanations/commitments/{region}"
    answer = Client(headers={"X-Auth-Token": token} if token else {}).get(path)
    assert answer.status_code == status
    assert Client(headers={"X-Auth-Token": VIEWER}).post(path).status_code == 405
