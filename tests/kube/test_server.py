from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from kubernetes import client, config

from tests.kube import programs
from tests.kube.server import ApiServer, Cluster


def test_it_answers_kubectl(api_server: Cluster) -> None:
    assert '"gitVersion"' in api_server.kubectl("version", "-o", "json")
    assert "customresourcedefinitions" in api_server.kubectl("api-resources", "-o", "name")


def test_it_answers_the_python_client(api_server: Cluster) -> None:
    connected = config.new_client_from_config(str(api_server.kubeconfig))  # type: ignore[no-untyped-call]  # theirs
    with connected:
        found = client.CoreV1Api(connected).list_namespace().to_dict()["items"]
    names = {space["metadata"]["name"] for space in found}
    assert "default" in names


def test_it_refuses_who_has_no_role(own_api_server: ApiServer) -> None:
    said = own_api_server.kubectl("get", "namespaces", user="human", code=1)
    assert "cannot list resource" in said


def test_it_comes_back_with_what_it_knew(own_api_server: ApiServer) -> None:
    own_api_server.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    own_api_server.stop()
    own_api_server.start()
    assert own_api_server.get("configmap", "kept")["data"] == {"a": "b"}


def test_without_go_and_without_a_build_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(programs.NoGoError, match="need it"):
        programs.built()


@pytest.mark.skipif(shutil.which("go") is None, reason=programs.NO_GO)
def test_a_build_that_fails_leaves_nothing_that_passes_for_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "sources"
    shutil.copytree(programs.SOURCES, broken)
    (broken / "main.go").write_text("package main\n\nfunc main() { nothing() }\n")
    monkeypatch.setattr(programs, "SOURCES", broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(subprocess.CalledProcessError):
        programs.built()
    assert not programs.cached().directory.exists()
