"""The kubectl plug-in: the real kubectl, a real API server, a served Headroom."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
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

    def run(*words: str, token: str = ANYBODY, namespace: str = "default") -> Any:
        return subprocess.run(  # noqa: S603 - a test's own words
            [str(tmp_path / "kubectl"), "headroom", "-n", namespace, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "KUBECONFIG": str(api_server.kubeconfig),
                "HOME": str(tmp_path),
                "HEADROOM_TOKEN": token,
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
