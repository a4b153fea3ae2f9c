"""The client of the other Placement, against a server that misbehaves on real sockets."""

from __future__ import annotations

import errno
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from placement.domain.errors import (
    UpstreamAway,
    UpstreamFailed,
    UpstreamTooSlow,
    UpstreamUnreachable,
)
from placement.gateway.links import BoundedSocket
from placement.gateway.upstream import Upstream, UpstreamOptions
from tests.bad_peer import LARGE_BYTES, LARGE_PIECE, BadPeer

PLENTY_SECONDS = 60.0
SHORT_SECONDS = 0.3


@pytest.fixture
def peer() -> Iterator[BadPeer]:
    with BadPeer() as started:
        yield started


_made: list[Upstream] = []


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


def client(port: int, **more: Any) -> Upstream:
    options = {
        "url": f"http://127.0.0.1:{port}/root/",
        "timeout_seconds": PLENTY_SECONDS,
        "connect_seconds": PLENTY_SECONDS,
        "idle_seconds": PLENTY_SECONDS,
        "most_idle": 2,
        "most_failures": 1000,
        "open_seconds": PLENTY_SECONDS,
        "most_answer_bytes": LARGE_BYTES,
    }
    _made.append(Upstream(UpstreamOptions(**{**options, **more})))
    return _made[-1]


def send(upstream: Upstream, word: str, method: str = "GET", **more: Any) -> Any:
    return upstream.send(method, f"/{word}", headers=more.pop("headers", ()), **more)


def test_a_request_goes_on_as_it_is_and_its_answer_comes_back_as_it_is(peer: BadPeer) -> None:
    answer = send(
        client(peer.port),
        "error?a=%2f&b=+",
        "PUT",
        headers=[("X-A", "ü"), ("Content-Length", "3")],
        body=b"abc",
    )
    assert (answer.status, answer.reason, answer.body) == (500, "Broken", b"oops")
    assert [pair for pair in answer.headers if pair[0] == "X-Odd"] == [
        ("X-Odd", "1"),
        ("X-Odd", "2"),
    ]
    assert peer.requests == [
        (
            f"PUT /root/error?a=%2f&b=+ HTTP/1.1\r\nHost: 127.0.0.1:{peer.port}\r\n"
            "X-A: ü\r\nContent-Length: 3\r\n\r\n"
        ).encode("latin-1")
    ]


@pytest.mark.parametrize("word", ["fine", "chunked", "until-the-end"])
def test_every_way_to_say_how_long_a_body_is(peer: BadPeer, word: str) -> None:
    assert send(client(peer.port), word).body == b"ok"


def test_redirects_are_not_followed(peer: BadPeer) -> None:
    assert send(client(peer.port), "redirect").status == 302
    assert len(peer.asked) == 1


@pytest.mark.parametrize("word", ["silent", "trickle-head", "trickle-body"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_no_request_outlives_its_deadline(peer: BadPeer, word: str, method: str) -> None:
    with pytest.raises(UpstreamTooSlow) as caught:
        send(client(peer.port, timeout_seconds=SHORT_SECONDS), word, method)
    assert caught.value.status == 504
    assert len(peer.asked) == 1


@pytest.mark.parametrize("word", ["dies", "dies-in-body", "dies-in-chunk", "no-http"])
@pytest.mark.parametrize(("method", "tries"), [("GET", 2), ("PUT", 1), ("POST", 1), ("DELETE", 1)])
def test_only_what_changes_nothing_is_sent_twice(
    peer: BadPeer, word: str, method: str, tries: int
) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        send(client(peer.port), word, method)
    assert caught.value.status == 502
    assert len(peer.asked) == tries


@pytest.mark.parametrize(("method", "tries"), [("GET", 2), ("PUT", 1)])
def test_a_connection_that_the_system_gives_up_may_have_carried_the_request(
    peer: BadPeer, monkeypatch: pytest.MonkeyPatch, method: str, tries: int
) -> None:
    def give_up(*_: object) -> int:
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")  # as after lost keep-alives

    monkeypatch.setattr(BoundedSocket, "recv_into", give_up)
    sent = []
    send_all = BoundedSocket.sendall

    def sendall(self: BoundedSocket, *arguments: Any) -> None:
        sent.append(arguments)
        send_all(self, *arguments)

    monkeypatch.setattr(BoundedSocket, "sendall", sendall)
    with pytest.raises(UpstreamFailed) as caught:
        send(client(peer.port), "fine", method)
    assert not isinstance(caught.value, UpstreamUnreachable)
    assert len(sent) == tries


def test_connections_are_used_again(peer: BadPeer) -> None:
    upstream = client(peer.port)
    for word in ("fine", "chunked", "error", "fine"):
        send(upstream, word)
    assert peer.connections == 1


def test_idle_connections_that_are_old_are_not(peer: BadPeer) -> None:
    upstream = client(peer.port, idle_seconds=1e-9)
    for _ in range(3):
        send(upstream, "fine", "PUT")
    assert peer.connections == 3


def test_a_connection_that_the_other_side_ended_is_not(peer: BadPeer) -> None:
    upstream = client(peer.port)
    send(upstream, "fine")
    link = peer.end_connections()
    assert link == 1
    assert send(upstream, "fine", "PUT").status == 200
    assert peer.connections == 2


def test_few_idle_connections_are_kept(peer: BadPeer) -> None:
    upstream = client(peer.port)
    threads = [threading.Thread(target=send, args=(upstream, "fine")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(upstream._idle) <= 2


def test_a_large_answer_comes_whole(peer: BadPeer) -> None:
    answer = send(client(peer.port), "large")
    assert answer.body == LARGE_PIECE * (LARGE_BYTES // len(LARGE_PIECE))


def test_a_large_answer_may_go_to_a_file(peer: BadPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LARGE_PIECE * (LARGE_BYTES // len(LARGE_PIECE))
    upstream = client(peer.port)
    answer = send(upstream, "large", spools=True)
    assert answer.body == b""
    with answer.file as file:
        file.seek(0)
        assert file.read() == whole
    small = send(upstream, "fine", spools=True)
    assert (small.body, small.file) == (b"ok", None)
    with pytest.raises(UpstreamFailed, match="more than 31 MiB"):
        send(client(peer.port, most_answer_bytes=LARGE_BYTES - 1), "large", "PUT", spools=True)
    monkeypatch.setattr("tempfile.tempdir", "/nowhere/at/all")
    answer = send(upstream, "large", spools=True)
    assert (answer.body == whole, answer.file) == (True, None)


def test_an_answer_that_is_too_large_is_none(peer: BadPeer) -> None:
    with pytest.raises(UpstreamFailed, match="more than 31 MiB"):
        send(client(peer.port, most_answer_bytes=LARGE_BYTES - 1), "large", "PUT")


def test_after_failures_in_a_row_it_is_left_alone(peer: BadPeer) -> None:
    upstream = client(peer.port, most_failures=2)
    for _ in range(2):
        with pytest.raises(UpstreamFailed):
            send(upstream, "dies", "PUT")
    with pytest.raises(UpstreamAway) as caught:
        send(upstream, "fine")
    assert caught.value.status == 503
    assert int(caught.value.headers["Retry-After"]) > 0
    assert len(peer.asked) == 2


def test_an_answer_of_any_status_is_no_failure(peer: BadPeer) -> None:
    upstream = client(peer.port, most_failures=1)
    for _ in range(3):
        assert send(upstream, "error").status == 500


def test_nobody_there() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(UpstreamFailed):
            send(client(nobody.getsockname()[1]), "fine", "PUT")
    with pytest.raises(UpstreamFailed):
        send(client(1, url="http://headroom.invalid"), "fine")


def test_whoever_takes_no_connection_is_waited_for_no_longer_than_that() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
        with pytest.raises((UpstreamFailed, UpstreamTooSlow)):
            send(client(port, connect_seconds=0.2, timeout_seconds=20.0), "fine", "PUT")
        for one in waiting:
            one.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path: Path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-keyout", str(path), "-out", f"{path}.crt", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - ours
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return path


def tls_url(peer: BadPeer, certificate: Path) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    peer.tls = context
    return f"https://localhost:{peer.port}"


def test_tls_with_a_certificate_that_is_trusted(peer: BadPeer, certificate: Path) -> None:
    upstream = client(peer.port, url=tls_url(peer, certificate), ca_file=str(certificate))
    for method in ("GET", "PUT"):
        assert send(upstream, "fine", method).body == b"ok"
    assert peer.connections == 1
    assert len(send(upstream, "large").body) == LARGE_BYTES


@pytest.mark.parametrize("word", ["silent", "trickle-body"])
def test_tls_ends_at_the_deadline(peer: BadPeer, certificate: Path, word: str) -> None:
    upstream = client(
        peer.port, url=tls_url(peer, certificate), ca_file=str(certificate), timeout_seconds=1.0
    )
    with pytest.raises(UpstreamTooSlow):
        send(upstream, word)


def test_tls_with_a_stranger(peer: BadPeer, certificate: Path) -> None:
    with pytest.raises(UpstreamFailed, match="CERTIFICATE_VERIFY_FAILED"):
        send(client(peer.port, url=tls_url(peer, certificate)), "fine", "PUT")
    assert peer.asked == []
