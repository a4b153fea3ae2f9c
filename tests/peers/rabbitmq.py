"""A real RabbitMQ with a directory of its own, for tests that need one (Debian's package)."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from config.launcher.demo import ADDRESS, choose_port
from config.launcher.processes import Child, start_child, stop_children, wait_until

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
EPMD = shutil.which("epmd")
IS_INSTALLED = SERVER.exists() and EPMD is not None
PATIENCE_SECONDS = 90.0
CONFIGURATION = """\
listeners.tcp.1 = {address}:{port}
default_user = nova
default_pass = secret-of-tests
loopback_users = none
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 50MB
log.console = true
log.console.level = warning
log.file = false
"""


@dataclass(slots=True, kw_only=True)
class RabbitMQ:
    """A node that can be killed and started again on its data.

    Attributes:
        directory: Its data, configuration and logs.
    """

    directory: Path
    port: int = field(default_factory=lambda: choose_port(0))
    names_port: int = field(default_factory=lambda: choose_port(0))
    nodes_port: int = field(default_factory=lambda: choose_port(0))
    child: Child | None = None
    names: Child | None = None

    @property
    def url(self) -> str:
        """Its address for oslo.messaging."""
        return f"rabbit://nova:secret-of-tests@{ADDRESS}:{self.port}/"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        environment = self._environment()
        if self.names is None:
            assert EPMD is not None
            self.names = start_child(
                "epmd",
                [EPMD, "-port", str(self.names_port), "-address", ADDRESS],
                log=self.directory / "epmd.log",
                env=environment,
                cwd=self.directory,
                death_signal=signal.SIGKILL,
            )
        self.child = start_child(
            "rabbitmq",
            [str(SERVER)],
            log=self.directory / "rabbitmq.log",
            env=environment,
            cwd=self.directory,
            death_signal=signal.SIGKILL,
        )
        log = self.directory / "rabbitmq.log"
        assert wait_until(self._answers, PATIENCE_SECONDS), log.read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """End the node; what its durable queues hold stays."""
        if self.child is not None:
            stop_children([self.child], ((signal.SIGTERM, PATIENCE_SECONDS),))

    def close(self) -> None:
        """End everything."""
        self.stop()
        if self.names is not None:
            stop_children([self.names], ((signal.SIGKILL, PATIENCE_SECONDS),))

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection((ADDRESS, self.port), 1.0) as link:
            link.sendall(b"AMQP\0\0\x09\x01")
            return bool(link.recv(1))
        return False

    def _environment(self) -> dict[str, str]:
        home = self.directory
        (home / "rabbitmq.conf").write_text(CONFIGURATION.format(address=ADDRESS, port=self.port))
        (home / "enabled_plugins").write_text("[].\n")
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(home),
            "RABBITMQ_NODENAME": f"tests{self.port}@localhost",
            "ERL_EPMD_PORT": str(self.names_port),
            "ERL_EPMD_ADDRESS": ADDRESS,
            "RABBITMQ_DIST_PORT": str(self.nodes_port),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none "
                "-kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }


@contextmanager
def running_rabbitmq(directory: Path) -> Iterator[RabbitMQ]:
    """Run a node."""
    node = RabbitMQ(directory=directory)
    try:
        node.start()
        yield node
    finally:
        node.close()
