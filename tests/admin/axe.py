"""axe-core, which finds what hinders screen readers, keyboards and weak eyes on a page.

One release of it, by npm and by its checksum, kept in the user's cache folder for every checkout.
``python -m tests.admin.axe`` fetches it ahead.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from config.launcher.places import locked

VERSION = "4.11.1"
SHA256 = "7dbfabdfc6062936d79c873ddbb5f811a1219fca3928bd8cc9dd81f1e65f4720"
MEMBER = "package/axe.min.js"
FETCH_SECONDS = 120.0


class NoAxeError(RuntimeError):
    """It is not in the cache and cannot be fetched."""


def axe_source() -> str:
    """Return its script, fetched unless it is there; others that ask meanwhile wait.

    Raises:
        NoAxeError: there is no npm, npm reaches no registry, or what it brought is another script.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    script = caches / "headroom" / "axe" / f"{SHA256[:16]}.js"
    script.parent.mkdir(parents=True, exist_ok=True)
    with locked(script.with_suffix(".lock")):
        if not script.is_file():
            partial = script.with_suffix(".partial")
            partial.write_bytes(_fetched())
            partial.rename(script)
    content = script.read_bytes()
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise NoAxeError(f"{script} is not axe-core {VERSION}: delete it")
    return content.decode()


def _fetched() -> bytes:
    npm = shutil.which("npm")
    if npm is None:
        raise NoAxeError("no npm: tests with axe-core need it (Debian: npm)")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", f"axe-core@{VERSION}", "--pack-destination", folder]
        try:
            subprocess.run(  # noqa: S603 - our arguments
                command, cwd=folder, capture_output=True, check=True, timeout=FETCH_SECONDS
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as problem:
            said = (problem.stderr or b"").decode(errors="replace")[-300:]
            raise NoAxeError(f"npm could not fetch axe-core {VERSION}: {said}") from problem
        with tarfile.open(Path(folder) / f"axe-core-{VERSION}.tgz") as archive:
            member = archive.extractfile(MEMBER)
            content = member.read() if member is not None else b""
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise NoAxeError(f"what npm brought as axe-core {VERSION} is another script")
    return content


if __name__ == "__main__":
    try:
        axe_source()
    except NoAxeError as problem:
        sys.exit(str(problem))
