"""``manage.py check_commitments`` against a served Headroom and against servers that misbehave."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from capacity.models import FlavorGroupSettings, Reservation
from commitments.management.commands.check_commitments import (
    DEFAULT_OTHER_PROJECT,
    DEFAULT_PROJECT,
)
from commitments.models import Commitment
from tests.e2e.processes import ADMIN, ALONE, VIEWER, WebServer
from tests.factories import make_group, make_hosts, make_vm

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

RESOURCES = ("hw_version_g_cores", "hw_version_g_ram")
CHECKS = ("dry run", "round trip", "batch", "transfer")


@pytest.fixture
def web(transactional_db: None, tmp_path: Path) -> Iterator[WebServer]:
    del transactional_db
    with WebServer(directory=tmp_path, overrides=ALONE) as server:
        yield server


def run(url: str, *arguments: str, token: str = ADMIN, folder: Path) -> list[dict[str, Any]]:
    """Run the command; return its lines, whether or not a check failed."""
    token_file = folder / "token"
    token_file.write_text(token)
    output = io.StringIO()
    options = ("--json", f"--url={url}", f"--token-file={token_file}", *arguments)
    with contextlib.suppress(CommandError):
        call_command("check_commitments", *options, stdout=output)
    return [json.loads(line) for line in output.getvalue().splitlines()]


def outcomes(lines: list[dict[str, Any]]) -> set[str]:
    return {line["outcome"] for line in lines}


def url_of(web: WebServer) -> str:
    return f"http://127.0.0.1:{web.port}"


def test_every_check_passes_on_a_cloud_with_room(web: WebServer, tmp_path: Path) -> None:
    make_group("g", flavors=[("g-small", 16384, 4), ("g-large", 32768, 8)])
    for zone in ("az-a", "az-b"):
        host, *_rest = make_hosts(3, zone=zone, prefix=f"{zone}-h")
    make_vm(host=host, flavor_name="g-small", project_id=DEFAULT_PROJECT, memory_gib=16, vcpus=4)

    lines = run(url_of(web), "--zone=az-a", "--zone=az-b", folder=tmp_path)

    assert outcomes(lines) == {"passed"}, lines
    vms = {
        (line["check"], line["zone"], line["detail"])
        for line in lines
        if line["check"] in {"round trip", "batch"}
    }
    assert vms == {
        (check, zone, f"VMs committed 0, pay as you go {count}")
        for check in ("round trip", "batch")
        for zone, count in (("az-a", 0), ("az-b", 1))
    }
    assert [line["check"] for line in lines[:3]] == ["info", "capacity report", "usage report"]
    wanted = [(c, z, r) for c in CHECKS for z in ("az-a", "az-b") for r in RESOURCES]
    assert [(line["check"], line["zone"], line["resource"]) for line in lines[3:]] == wanted
    assert not Commitment.objects.exists()
    assert not Reservation.objects.exists()


def test_what_a_cloud_refuses_or_keeps_is_told(web: WebServer, tmp_path: Path) -> None:
    """One cloud that changes between the runs, so that one server is asked."""
    make_group("g", flavors=[("g-small", 16384, 4)], handles=())
    lines = run(url_of(web), "--zone=az-a", folder=tmp_path)
    assert (lines[-1]["check"], lines[-1]["outcome"]) == ("commitments", "warned")

    FlavorGroupSettings.objects.update(ram_handles_commitments=True, ram_handles_dry_run=True)
    lines = run(url_of(web), "--zone=az-a", token=VIEWER, folder=tmp_path)
    assert {line["outcome"] for line in lines[:3]} == {"passed"}
    assert {line["outcome"] for line in lines[3:]} == {"failed"}
    assert all("status 403" in line["detail"] for line in lines[3:])

    make_hosts(3, zone="az-a")
    lines = run(url_of(web), "--zone=az-a", "--no-cleanup", folder=tmp_path)
    assert outcomes(lines) == {"passed"}, lines
    kept = Commitment.objects.filter(state="confirmed")
    names = sorted(uuid.split("-")[1] for uuid in kept.values_list("commitment_uuid", flat=True))
    assert names[1:] == ["batch", "batch", "move"]


def test_a_full_cloud_rejects_and_keeps_nothing(web: WebServer, tmp_path: Path) -> None:
    make_group("g", flavors=[("g-small", 16384, 4)])
    make_hosts(1, zone="az-a", memory_gib=8, vcpus=1)

    lines = run(url_of(web), "--zone=az-a", folder=tmp_path)

    by_check = {(line["check"], line["outcome"]) for line in lines[3:]}
    assert by_check == {(check, "rejected") for check in CHECKS}, lines
    assert all("insufficient" in line["detail"] for line in lines[3:])
    assert not Commitment.objects.exists()


@contextlib.contextmanager
def server_of(
    answer: Callable[[str], tuple[int, bytes]], seen: list[tuple[str, str, Any]] | None = None
) -> Iterator[str]:
    """Serve ``answer(path)`` on loopback; yield the base URL.

    What was asked is added to ``seen`` as path, token and decoded body.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if seen is not None:
                token = self.headers.get("X-Auth-Token", "")
                seen.append((self.path, token, json.loads(content) if content else None))
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


INFO = {
    "version": 7,
    "displayName": "compute",
    "categories": {"g": {"displayName": "g"}},
    "resources": {
        "g_ram": {
            "unit": "GiB",
            "topology": "az-aware",
            "categoryName": "g",
            "hasCapacity": True,
            "hasQuota": False,
            "handlesCommitments": True,
        }
    },
}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        pytest.param(503, b"not ready", "status 503: not ready", id="not ready"),
        pytest.param(200, b"<html>", "no JSON", id="not JSON"),
        pytest.param(200, b"[1]", "no JSON object", id="not an object"),
        pytest.param(
            200, b'{"version": "x", "resources": {}}', "version is no number", id="version"
        ),
    ],
)
def test_a_broken_info_stops_the_checks(
    status: int, body: bytes, words: str, tmp_path: Path
) -> None:
    with server_of(lambda _path: (status, body)) as url:
        (line,) = run(url, "--zone=az-a", folder=tmp_path)
    assert (line["check"], line["outcome"]) == ("info", "failed")
    assert words in line["detail"]


def test_nobody_listening_is_a_failure(tmp_path: Path) -> None:
    with server_of(lambda _path: (200, b"")) as url:
        pass
    (line,) = run(url, folder=tmp_path)
    assert (line["outcome"], "no answer" in line["detail"]) == ("failed", True)


def test_an_unexpected_reason_and_a_refused_deletion_are_failures(tmp_path: Path) -> None:
    usage = {"perAZ": {"az-a": {"usage": 0}}}
    changes: list[str] = []

    def answer(path: str) -> tuple[int, bytes]:
        if path.endswith("/info"):
            return 200, json.dumps(INFO).encode()
        if path.endswith("/report-capacity"):
            report = {
                "infoVersion": 7,
                "resources": {"g_ram": {"perAZ": {"az-a": {"capacity": 1}}}},
            }
            return 200, json.dumps(report).encode()
        if path.endswith("/report-usage"):
            return 200, json.dumps({"infoVersion": 7, "resources": {"g_ram": usage}}).encode()
        changes.append(path)
        # dry run rejected oddly; round trip: created, repeated, deletion refused; batch: pending
        # rejected; transfer: created, the move rejected, deleted.
        reasons = ["no such flavor", "", "", "locked", "never", "", "elsewhere", ""]
        reason = reasons[len(changes) - 1]
        return 200, json.dumps({"rejectionReason": reason} if reason else {}).encode()

    with server_of(answer) as url:
        lines = run(url, "--zone=az-a", folder=tmp_path)

    assert [(line["check"], line["outcome"]) for line in lines] == [
        ("info", "passed"),
        ("capacity report", "passed"),
        ("usage report", "passed"),
        *((check, "failed") for check in CHECKS),
    ]
    words = ("no such flavor", "a deletion was refused: locked", "pending", "elsewhere")
    assert all(word in line["detail"] for word, line in zip(words, lines[3:], strict=True))
    assert len(changes) == 8


Sent = tuple[bool, dict[str, tuple[int, int, list[tuple[str, str | None, str | None, int]]]], int]
ONE, OTHER = DEFAULT_PROJECT, DEFAULT_OTHER_PROJECT
ROUND: Sent = (False, {ONE: (0, 2, [("e2e-", None, "confirmed", 2)])}, 5)
ROUND_END: Sent = (False, {ONE: (2, 0, [("e2e-", "confirmed", None, 2)])}, 5)
PENDING: Sent = (False, {ONE: (0, 0, [("e2e-batch-a-", None, "pending", 1)])}, 10)
BOTH: Sent = (
    False,
    {
        ONE: (
            0,
            4,
            [
                ("e2e-batch-a-", "pending", "confirmed", 3),
                ("e2e-batch-b-", None, "confirmed", 1),
            ],
        )
    },
    10,
)
BATCH_END: Sent = (
    False,
    {
        ONE: (
            4,
            0,
            [("e2e-batch-a-", "confirmed", None, 3), ("e2e-batch-b-", "confirmed", None, 1)],
        )
    },
    5,
)
PENDING_END: Sent = (False, {ONE: (0, 0, [("e2e-batch-a-", "pending", None, 1)])}, 5)
MOVE = ("e2e-move-", None, "confirmed", 1)
LEAVE = ("e2e-move-", "confirmed", None, 1)
TRANSFERS: list[Sent] = [
    (False, {ONE: (0, 1, [MOVE])}, 5),
    (False, {ONE: (1, 0, [LEAVE]), OTHER: (0, 1, [MOVE])}, 5),
    (False, {OTHER: (1, 0, [LEAVE]), ONE: (0, 1, [MOVE])}, 5),
    (False, {ONE: (1, 0, [LEAVE])}, 5),
]
DRY: Sent = (True, {ONE: (0, 2, [("e2e-dry-", None, "confirmed", 2)])}, 5)
FULL = "1 commitment(s) failed to apply: insufficient capacity: 0/1"


@pytest.mark.parametrize(
    ("reasons", "wanted", "outcome"),
    [
        pytest.param(
            {},
            [DRY, ROUND, ROUND, ROUND_END, PENDING, BOTH, BATCH_END, *TRANSFERS],
            "passed",
            id="accepted",
        ),
        pytest.param(
            dict.fromkeys((0, 1, 3, 5), FULL),
            [DRY, ROUND, PENDING, BOTH, PENDING_END, TRANSFERS[0]],
            "rejected",
            id="no capacity",
        ),
    ],
)
def test_checks_send_what_the_specification_says(
    reasons: dict[int, str], wanted: list[Sent], outcome: str, tmp_path: Path
) -> None:
    """The steps of liquid 17: amounts, totals, statuses, uuids and ends, zone and version."""
    seen: list[tuple[str, str, Any]] = []
    versions: list[int] = []

    def answer(path: str) -> tuple[int, bytes]:
        if path.endswith("/info"):
            versions.append(100 + len(versions))
            return 200, json.dumps({**INFO, "version": versions[-1]}).encode()
        if not path.endswith("/change-commitments"):
            return 503, b"not now"
        number = len([True for asked, _, _ in seen if asked.endswith("/change-commitments")]) - 1
        reason = reasons.get(number, "")
        return 200, json.dumps({"rejectionReason": reason} if reason else {}).encode()

    started = datetime.now(UTC).replace(microsecond=0)
    with server_of(answer, seen) as url:
        lines = run(url, token="the-token-of-the-operator", folder=tmp_path)
    ended = datetime.now(UTC)

    bodies = [body for path, _, body in seen if path.endswith("/change-commitments")]
    assert {token for _, token, _ in seen} == {"the-token-of-the-operator"}
    assert {body["az"] for body in bodies} == {"qa-de-1b"}
    assert len({body["infoVersion"] for body in bodies}) == len(bodies), "a fresh version each"
    assert {body["infoVersion"] for body in bodies} <= set(versions)
    assert [sent_of(body, started, ended) for body in bodies] == wanted
    by_check = {line["check"]: line["outcome"] for line in lines}
    assert by_check["dry run"] == outcome
    assert by_check["transfer"] == outcome


def sent_of(body: dict[str, Any], started: datetime, ended: datetime) -> Sent:
    """Read a request back as the table of the specification tells it; its life in minutes."""
    projects = {}
    lives = set()
    for project_id, project in body["byProject"].items():
        ((_, changeset),) = project["byResource"].items()
        assert project["projectMetadata"]["uuid"] == project_id
        changes = []
        for one in changeset["commitments"]:
            prefix, _, number = one["uuid"].rpartition("-")
            assert started.timestamp() <= int(number) / 1000 <= ended.timestamp()
            changes.append((f"{prefix}-", one["oldStatus"], one["newStatus"], one["amount"]))
            end = datetime.fromisoformat(one["expiresAt"])
            lives |= {
                minutes
                for minutes in (5, 10)
                if started <= end - timedelta(minutes=minutes) <= ended
            }
        before, after = changeset["totalConfirmedBefore"], changeset["totalConfirmedAfter"]
        projects[project_id] = (before, after, changes)
    (life,) = lives
    return body["dryRun"], projects, life


def test_version_below_zero_is_a_warning(tmp_path: Path) -> None:
    def answer(path: str) -> tuple[int, bytes]:
        if path.endswith("/info"):
            return 200, json.dumps({"version": -1, "resources": {}}).encode()
        return 503, b"not now"

    with server_of(answer) as url:
        lines = run(url, folder=tmp_path)
    assert (lines[0]["check"], lines[0]["outcome"]) == ("info", "warned")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--timeout=0"], "--timeout", id="timeout"),
        pytest.param(["--project=p", "--other-project=p"], "--other-project", id="one project"),
        pytest.param(["--token-file=nowhere/at/all"], "--token-file", id="token file"),
    ],
)
def test_bad_options_are_named(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        call_command("check_commitments", *arguments)


def test_lines_for_people_name_check_zone_and_outcome() -> None:
    output = io.StringIO()
    with server_of(lambda _path: (503, b"not ready")) as url, pytest.raises(CommandError):
        call_command("check_commitments", f"--url={url}", stdout=output)
    assert output.getvalue().splitlines() == [
        "FAIL info: GET info: status 503: not ready",
        "0 passed, 0 rejected, 0 warned, 1 failed",
    ]
