"""A running Kubernetes API server with its own etcd, and the kubectl that speaks to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from config.launcher.demo import choose_port
from config.launcher.processes import Child, start_child, stop_children, wait_until
from tests.kube.programs import Programs, kubectl

PATIENCE_SECONDS = 60.0
KUBECTL_SECONDS = 60.0
#: Who may log in: user, and the groups that decide what they may do.
USERS = {"admin": "system:masters", "bridge": "", "human": ""}


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A cluster that tests speak to: ours, or the one that ``KUBECONFIG`` names."""

    kubeconfig: Path

    def kubectl(
        self, *arguments: str, stdin: str = "", user: str = "", code: int | None = 0
    ) -> str:
        """Run the real kubectl and return what it printed; with another user where we made some.

        Args:
            code: Exit status that is expected; any when None.
        """
        chosen = ["--context", user] if user else []
        done = subprocess.run(  # noqa: S603 - a test's own words
            [str(kubectl()), "--kubeconfig", str(self.kubeconfig), *chosen, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=KUBECTL_SECONDS,
            env={"PATH": os.environ["PATH"], "HOME": str(self.kubeconfig.parent)},
        )
        said = f"{done.stdout}{done.stderr}"
        assert code is None or done.returncode == code, f"kubectl {arguments}: {said}"
        return said if done.returncode else done.stdout

    def get(self, *arguments: str) -> Any:
        """Return what ``kubectl get`` gives, as JSON."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))


@dataclass(slots=True, kw_only=True)
class ApiServer(Cluster):
    """Our own, which can be stopped and started: it comes back with what it knew."""

    programs: Programs
    directory: Path
    port: int = field(default_factory=lambda: choose_port(0))
    children: list[Child] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        return self.directory / "certs" / "apiserver.crt"

    def start(self) -> None:
        etcd_url = self._start_etcd()
        arguments = [
            f"--etcd-servers={etcd_url}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.directory / 'certs'}",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.directory / 'accounts.pub'}",
            f"--service-account-signing-key-file={self.directory / 'accounts.key'}",
        ]
        self._start("apiserver", self.programs.api_server, arguments)
        self._await("apiserver", f"{self.url}/readyz")

    def _start_etcd(self) -> str:
        url, peer = (f"http://127.0.0.1:{choose_port(0)}" for _ in range(2))
        arguments = [
            *("--data-dir", str(self.directory / "data"), "--unsafe-no-fsync"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        ]
        self._start("etcd", self.programs.etcd, arguments)
        self._await("etcd", f"{url}/health")
        return url

    def stop(self, signum: int = signal.SIGTERM) -> None:
        stop_children(reversed(self.children), ((signum, 5.0),))
        self.children.clear()

    def _start(self, name: str, program: Path, arguments: list[str]) -> None:
        child = start_child(
            name,
            [str(program), *arguments],
            log=self.directory / f"{name}.log",
            env={"PATH": os.environ["PATH"], "HOME": str(self.directory)},
            cwd=self.directory,
            death_signal=signal.SIGKILL,
        )
        self.children.append(child)

    def _await(self, name: str, url: str) -> None:
        process = self.children[-1].process

        def is_settled() -> bool:
            return process.poll() is not None or self._answers(url)

        assert wait_until(is_settled, PATIENCE_SECONDS), self.log(name)
        assert process.poll() is None, self.log(name)

    def _answers(self, url: str) -> bool:
        headers = {"Authorization": f"Bearer {token_of('admin')}"}
        try:
            verify = str(self.certificate) if url.startswith("https") else True
            return requests.get(url, headers=headers, verify=verify, timeout=2).ok
        except (requests.RequestException, OSError):
            return False

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(errors="replace")[-4000:]


def token_of(user: str) -> str:
    """Return what a user logs in with."""
    return f"token-of-{user}"


def start_api_server(programs: Programs, directory: Path) -> ApiServer:
    """Start an API server that keeps everything in an empty directory."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (directory / "accounts.key").write_bytes(private)
    (directory / "accounts.pub").write_bytes(public)
    rows = [f"{token_of(user)},{user},{user},{groups}" for user, groups in USERS.items()]
    (directory / "tokens.csv").write_text("\n".join(rows) + "\n")
    server = ApiServer(kubeconfig=directory / "kubeconfig", programs=programs, directory=directory)
    server.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(server)))
    server.start()
    return server


def _kubeconfig(server: ApiServer) -> dict[str, Any]:
    cluster = {"server": server.url, "certificate-authority": str(server.certificate)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token_of(user)}} for user in USERS],
        "contexts": [
            {"name": user, "context": {"cluster": "test", "user": user}} for user in USERS
        ],
        "current-context": "admin",
    }
