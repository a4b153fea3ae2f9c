"""The environment of the reference Placement service under ``.local/placement-peer``.

The reference's import name is ``placement``, like our app: it never shares an environment or a
working directory with us. Conformance runs, comparison tests and benchmarks use it.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from config.launcher.environment import ensure_own_environment
from config.launcher.places import Checkout, locked, this_checkout
from config.launcher.processes import Child, start_child

REQUIREMENTS = "requirements-placement-peer.txt"
ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An environment with the reference in it."""

    directory: Path

    @property
    def python(self) -> Path:
        """The interpreter of the environment."""
        return self.directory / "bin" / "python"


def ensure_peer(checkout: Checkout) -> Peer:
    """Make the reference's environment, unless that is already done; return it.

    Raises:
        LauncherError: Python cannot make one, or the installation failed.
    """
    peer = Peer(directory=checkout.local / "placement-peer")
    with locked(checkout.local / "placement-peer.lock"):
        ensure_own_environment(
            checkout,
            peer.directory,
            checkout.root / REQUIREMENTS,
            title="installing the reference Placement service",
            log_name="pip-peer.log",
        )
    return peer


def reference_config(
    database_url: str, *, policy_file: str = "", enforces_new_defaults: bool = False
) -> str:
    """Return the configuration file of a reference server with tokens as noauth takes them.

    Args:
        database_url: As SQLAlchemy spells it.
        policy_file: Its rules; empty are the defaults.
        enforces_new_defaults: Whether role admin alone is not enough for all of them.
    """
    rules = f"policy_file = {policy_file}\n" if policy_file else ""
    new_defaults = str(enforces_new_defaults).lower()
    return f"""[DEFAULT]
debug = false
default_log_levels = placement=WARNING,alembic=WARNING
[api]
auth_strategy = noauth2
[placement_database]
connection = {database_url}
sync_on_startup = true
[oslo_policy]
enforce_new_defaults = {new_defaults}
{rules}"""


def start_reference(
    peer: Peer,
    directory: Path,
    *,
    port: int,
    database_url: str,
    environ: Mapping[str, str],
    workers: int = 1,
    threads: int = 1,
    mount: str = "",
    policy_file: str = "",
    enforces_new_defaults: bool = False,
) -> Child:
    """Start the reference on a port of this machine; its tables are made before it answers.

    Args:
        peer: Its environment.
        directory: A directory of its own for configuration and log.
        port: Where it listens.
        database_url: Its database, as SQLAlchemy spells it.
        environ: The environment of the process.
        workers: Processes.
        threads: Threads of each.
        mount: What stands before every path, such as ``/placement``.
        policy_file: See :func:`reference_config`.
        enforces_new_defaults: Likewise.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = reference_config(
        database_url, policy_file=policy_file, enforces_new_defaults=enforces_new_defaults
    )
    (directory / "placement.conf").write_text(config, encoding="utf-8")
    env = {**environ, "OS_PLACEMENT_CONFIG_DIR": str(directory), "PYTHONWARNINGS": "ignore"}
    if workers > 1:  # one makes them at its start; several would at the same time
        sync = [str(peer.directory / "bin" / "placement-manage"), "--config-dir", str(directory)]
        subprocess.run(
            [*sync, "db", "sync"], env=env, cwd=directory, check=True, capture_output=True
        )
    command = [str(peer.python), "-m", "granian", "--interface", "wsgi", "--host", ADDRESS]
    command += ["--port", str(port), "--workers", str(workers), "--no-ws"]
    command += ["--blocking-threads", str(threads), "placement.wsgi.api:application"]
    command += ["--url-path-prefix", mount] if mount else []
    return start_child(
        "reference",
        command,
        log=directory / "reference.log",
        env=env,
        cwd=directory,
        death_signal=signal.SIGTERM,  # its workers would outlive it otherwise
    )


if __name__ == "__main__":
    ensure_peer(this_checkout())
