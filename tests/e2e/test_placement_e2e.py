"""``manage.py placement_e2e`` against a served Headroom, with another Placement and without."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from config.sections_gateway import GatewaySettings
from journal.clock import database_now
from journal.leases import held_lease
from placement.clients.reference_database import read_database
from placement.e2e.checks import CHECKS, RENAMED, ROOT, ROOT_NAME
from placement.metrics import INVENTORIES
from placement.models import CheckOutcome, Consumer, Origin, ResourceClass, ResourceProvider, Trait
from placement.tasks import CHECK_SERVED_API, check_served_placement
from tests.e2e.placement_peers import MOUNT, PlacementServer, Request
from tests.e2e.processes import ALONE, OPEN, WebServer
from tests.e2e.upstream_placement import UpstreamPlacement, running_upstream
from tests.placement.rows import make_provider

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

MODES = ("passthrough", "hybrid", "local")
ALL_ROLES = "X-Roles: admin,service"
Line = dict[str, Any]


@pytest.fixture(scope="module")
def upstream(
    django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[UpstreamPlacement]:
    del django_db_setup
    with running_upstream(tmp_path_factory.mktemp("upstream")) as running:
        yield running


@pytest.fixture
def gateway(
    transactional_db: None, tmp_path: Path, upstream: UpstreamPlacement
) -> Iterator[WebServer]:
    del transactional_db
    more = upstream.settings(allow_mode_override="true")
    with WebServer(directory=tmp_path, overrides={**OPEN, **ALONE, **more}) as server:
        yield server


@pytest.fixture
def alone(transactional_db: None, tmp_path: Path) -> Iterator[WebServer]:
    """A server without another Placement."""
    del transactional_db
    with WebServer(directory=tmp_path, overrides={**OPEN, **ALONE}) as server:
        yield server


def run(
    web: WebServer, *arguments: str, roles: str = ALL_ROLES, folder: Path
) -> tuple[list[Line], int]:
    """Run the command; return its lines, and its exit status."""
    token_file = folder / "token"
    token_file.write_text("admin")
    output = io.StringIO()
    options = (
        "--json",
        f"--base-url=http://127.0.0.1:{web.port}{MOUNT}",
        f"--token-file={token_file}",
        f"--header={roles}",
        *arguments,
    )
    status = 0
    try:
        call_command("placement_e2e", *options, stdout=output)
    except CommandError as error:
        status = error.returncode
    return [json.loads(line) for line in output.getvalue().splitlines()], status


def left_behind() -> list[str]:
    names = [
        *ResourceProvider.objects.filter(name__startswith="cortex-e2e").values_list("name"),
        *Trait.objects.filter(name__startswith="CUSTOM_CORTEX_E2E").values_list("name"),
        *ResourceClass.objects.filter(name__startswith="CUSTOM_CORTEX_E2E").values_list("name"),
    ]
    return [name for (name,) in names]


def test_every_check_passes_in_every_mode(
    gateway: WebServer, upstream: UpstreamPlacement, tmp_path: Path
) -> None:
    host = make_provider("host", traits=("CUSTOM_HAD",))
    ResourceProvider.objects.filter(pk=host.pk).update(origin=Origin.HOST)

    lines, status = run(
        gateway, f"--mode={','.join(MODES)}", f"--host-provider={host.uuid}", folder=tmp_path
    )

    assert [line for line in lines if line["outcome"] != "passed"] == []
    assert status == 0
    wanted = [(mode, name) for mode in MODES for name, _, _ in CHECKS]
    assert [(line["mode"], line["test"]) for line in lines] == wanted
    assert left_behind() == []
    assert not Consumer.objects.exists()
    assert upstream_names(upstream) == []


def upstream_names(upstream: UpstreamPlacement) -> list[str]:
    return [one.name for one in read_database(upstream.database).providers.values()]


def test_a_mode_that_the_server_cannot_take_is_skipped(alone: WebServer, tmp_path: Path) -> None:
    lines, status = run(alone, "--mode=passthrough,local", folder=tmp_path)

    outcomes = Counter((line["mode"], line["outcome"]) for line in lines)
    assert outcomes == {("passthrough", "skipped"): len(CHECKS), ("local", "passed"): len(CHECKS)}
    assert status == 0
    lines, status = run(alone, "--mode=hybrid", folder=tmp_path)
    assert ({line["outcome"] for line in lines}, status) == ({"skipped"}, 1)


def test_a_token_that_may_only_read_fails_and_the_exit_status_says_so(
    alone: WebServer, tmp_path: Path
) -> None:
    lines, status = run(alone, roles="X-Roles: reader", folder=tmp_path)

    failed = {line["test"]: line["detail"] for line in lines if line["outcome"] == "failed"}
    assert status == 1
    assert set(failed) >= {name for name, _, _ in CHECKS} - {"root", "usages"}
    assert all("status 403" in detail for detail in failed.values()), failed


def test_what_an_interrupted_run_left_is_cleared_and_a_wrong_answer_is_told(
    alone: WebServer, tmp_path: Path
) -> None:
    make_provider(RENAMED, uuid=UUID(ROOT))
    make_provider(ROOT_NAME)  # somebody else's, under the name of ours

    lines, status = run(alone, folder=tmp_path)

    details = {line["test"]: line["detail"] for line in lines if line["outcome"] == "failed"}
    assert status == 1
    assert "status 409 instead of 200" in details["resource_providers"]
    assert {line["test"] for line in lines if line["outcome"] == "passed"} == {
        "root", "traits", "resource_classes"
    }  # fmt: skip
    assert left_behind() == [ROOT_NAME]


def test_as_a_task_it_tells_what_passed(
    gateway: WebServer, upstream: UpstreamPlacement, settings: Any
) -> None:
    assert check_served_placement() == {}  # off unless somebody says where
    url = f"http://127.0.0.1:{gateway.port}{MOUNT}"

    def configured(**fields: Any) -> None:
        section = GatewaySettings(
            upstream_url=upstream.url, token="admin", checks_url=url, **fields
        )
        settings.HEADROOM = settings.HEADROOM.model_copy(update={"gateway": section})

    configured(checks_modes=["passthrough"])
    assert check_served_placement() == {"passed": len(CHECKS), "skipped": 0, "failed": 0}
    told = successes()
    assert told == {(name, "passthrough"): 1.0 for name, _, _ in CHECKS}
    with foreign_provider(upstream):
        done = check_served_placement()
    assert (done["failed"] > 0, sum(done.values())) == (True, len(CHECKS))
    assert successes()["resource_providers", "passthrough"] == 0.0
    kept = CheckOutcome.objects.get(test="resource_providers")
    assert "status 409 instead of 200" in kept.detail
    with held_lease(CHECK_SERVED_API):
        assert check_served_placement() == {}
    CheckOutcome.objects.update(checked_at=database_now() - timedelta(minutes=16))
    assert successes() == {}  # nobody knows any more


def successes() -> dict[tuple[str, str], float]:
    (found,) = (one for one in INVENTORIES.collect() if one.name == "placement_e2e_success")
    return {(s.labels["test"], s.labels["mode"]): s.value for s in found.samples}


@contextmanager
def foreign_provider(upstream: UpstreamPlacement) -> Iterator[None]:
    """Take the checks' name there, under another UUID."""
    server = PlacementServer(port=upstream.port, prefix=MOUNT)
    body = {"name": ROOT_NAME, "uuid": str(UUID(int=7))}
    reply = server.send(Request(method="POST", path="/resource_providers", minor=39, body=body))
    assert reply.status == 200
    yield
    server.wipe()
    server.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--timeout=0"], "--timeout", id="timeout"),
        pytest.param(["--mode=local,remote"], "'remote' is not a valid Mode", id="mode"),
        pytest.param(["--header=x"], "--header", id="header"),
        pytest.param(["--token-file=nowhere/at/all"], "--token-file", id="token file"),
    ],
)
def test_bad_options_are_named(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        call_command("placement_e2e", *arguments)
