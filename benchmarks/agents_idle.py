"""What one real agent costs that has enrolled and has nothing to do, over HTTP and over TLS.

The agent has the environment of its unit of systemd, its intervals are the default ones, and its
file of certificates has those of the system as well. What it takes is read from the kernel.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from benchmarks.measures import Measure, measure
from benchmarks.placement_servers import cpu_seconds, served_headroom
from config.launcher.demo import ADDRESS
from config.launcher.places import this_checkout
from config.launcher.processes import wait_until
from hosts.agents.enrolment import create_token
from hosts.agents.models import HostAgent
from hosts.models import Host
from journal.actors import Actor
from tests.agent.trees import host_tree
from tests.factories import make_host

ANN = Actor(name="bench")
NAME = "bench-idle"
MAIN = "import sys; from headroom_host_agent.cli import main; sys.exit(main())"
MOST_MIB = 40.0
MOST_SHARE = 0.2  # percent of a core
WARM_SECONDS = 15.0
READY_SECONDS = 90.0
HOUR = timedelta(hours=1)
PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a process took: percent of one core, MiB that it has and had at most."""

    share: float
    now_mib: float
    peak_mib: float


def idle(seconds: float) -> list[Measure]:
    """Measure one agent over HTTP, then one over TLS, for so long each."""
    rows: list[Measure] = []
    with ExitStack() as held:
        web = held.enter_context(served_headroom())
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="idle-")))
        tls_port, ca = held.enter_context(_behind_tls(web.port, folder))
        for size, url, trusted in (
            ("one agent, HTTP", f"http://{ADDRESS}:{web.port}", None),
            ("one agent, TLS", f"https://{ADDRESS}:{tls_port}", ca),
        ):
            cost = _cost(url, trusted, seconds)
            rows += [
                measure("idle agent, memory", size, cost.now_mib, "MiB", at_most=MOST_MIB),
                measure("idle agent, peak memory", size, cost.peak_mib, "MiB", at_most=MOST_MIB),
                measure("idle agent, CPU", size, cost.share, "% of a core", at_most=MOST_SHARE),
            ]
    return rows


def _cost(url: str, ca: Path | None, seconds: float) -> Cost:
    HostAgent.objects.filter(host_name=NAME).delete()
    Host.objects.filter(name=NAME).delete()
    make_host(NAME)
    with tempfile.TemporaryDirectory(prefix="host-") as root:
        token = create_token(name_glob=NAME, uses=1, lifetime=HOUR, actor=ANN, request_id="bench")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(this_checkout().root / "clients/agent"),
            "MALLOC_ARENA_MAX": "1",  # as the unit has it
            "PYTHONOPTIMIZE": "2",  # likewise
            "HEADROOM_AGENT__SERVER__URL": url,
            **({"HEADROOM_AGENT__SERVER__CA": str(ca)} if ca else {}),
        }
        line, rest = [sys.executable, "-c", MAIN], ["--sysroot", str(host_tree(Path(root)))]
        subprocess.run(  # noqa: S603 - ours
            [*line, "enrol", "--name", NAME, *rest],
            input=token + "\n",
            env=environment,
            text=True,
            check=True,
        )
        with subprocess.Popen([*line, "run", *rest], env=environment) as process:  # noqa: S603
            try:
                if not wait_until(_has_reported, READY_SECONDS):
                    raise RuntimeError("the agent does not report")
                threading.Event().wait(WARM_SECONDS)
                spent = cpu_seconds(process.pid)
                threading.Event().wait(seconds)
                share = 100 * (cpu_seconds(process.pid) - spent) / seconds
                now_mib, peak_mib = (_mib(process.pid, name) for name in ("VmRSS", "VmHWM"))
            finally:
                process.terminate()
    return Cost(share=share, now_mib=now_mib, peak_mib=peak_mib)


def _mib(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(":", 1) for line in lines)[name].split()[0]) / 1024


def _has_reported() -> bool:
    return HostAgent.objects.filter(host_name=NAME, reported_at__isnull=False).exists()


@contextmanager
def _behind_tls(port: int, folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield a port that speaks TLS for another one, and a file of certificates that trusts it."""
    certificate, ca = folder / "own.pem", folder / "ca.pem"
    _write_certificate(certificate)
    system = ssl.get_default_verify_paths().cafile
    own = ssl.PEM_cert_to_DER_cert(certificate.read_text().partition("-----BEGIN PRIVATE")[0])
    public = ssl.DER_cert_to_PEM_cert(own)
    ca.write_text((Path(system).read_text() if system else "") + public)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = socket.create_server((ADDRESS, 0))
    threading.Thread(target=_accept_on, args=(listener, context, port), daemon=True).start()
    try:
        yield listener.getsockname()[1], ca
    finally:
        listener.close()


def _accept_on(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threading.Thread(
                target=_exchange, args=(connection, context, port), daemon=True
            ).start()


def _exchange(plain: socket.socket, context: ssl.SSLContext, port: int) -> None:
    """Hand one request on and its answer back; the agent has a connection for each."""
    with (
        suppress(OSError),
        context.wrap_socket(plain, server_side=True) as client,
        socket.create_connection((ADDRESS, port)) as server,
    ):
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        _pump(client, server)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(PIECE):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _write_certificate(path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ADDRESS)])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address(ADDRESS))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - HOUR)
        .not_valid_after(now + 24 * HOUR)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(made.public_bytes(Encoding.PEM) + private)
