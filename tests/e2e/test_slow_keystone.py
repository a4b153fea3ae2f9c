"""A Keystone that does not answer, behind a real web server: who waits, and who does not."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from config.launcher.demo import choose_port
from config.launcher.processes import wait_until
from tests.e2e.processes import Answer, WebServer
from tests.factories import make_group
from tests.peers.keystone import Keystone, start_keystone
from tests.peers.slow_proxy import SlowProxy, slow_proxy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.e2e]

INFO = "/commitments/v1/info"
PROVIDERS = "/placement/resource_providers"
DRILLS = "/api/v1/failover/drills"
MOST_WAITING = 4
MANY = 24
PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, SlowProxy]]:
    """Where Keystone will listen, and the proxy before it."""
    port = choose_port(0)
    with slow_proxy(port) as running:
        yield port, running


@pytest.fixture
def proxy(ports: tuple[int, SlowProxy]) -> SlowProxy:
    return ports[1]


@pytest.fixture(scope="module")
def keystone(
    ports: tuple[int, SlowProxy], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Keystone]:
    """A Keystone of our own, whose catalog names the proxy."""
    port, before = ports
    directory = tmp_path_factory.mktemp("slow-keystone")
    running = start_keystone(directory, port=port, public_port=before.port)
    yield running
    running.stop()


@pytest.fixture
def web(
    transactional_db: None, tmp_path: Path, keystone: Keystone, proxy: SlowProxy
) -> Iterator[WebServer]:
    """A web server of one process that asks Keystone through the proxy."""
    del transactional_db
    login = keystone.settings(auth_url=f"http://127.0.0.1:{proxy.port}/v3")
    assert login.password is not None
    with WebServer(
        directory=tmp_path,
        overrides={
            "GRANIAN_WORKERS": "1",
            "HEADROOM_AUTH": "keystone",
            "HEADROOM_KEYSTONE__AUTH_URL": login.auth_url,
            "HEADROOM_KEYSTONE__USERNAME": login.username,
            "HEADROOM_KEYSTONE__PASSWORD": login.password.get_secret_value(),
            "HEADROOM_KEYSTONE__PROJECT_NAME": login.project_name,
            "HEADROOM_KEYSTONE__CONNECT_RETRIES": "0",
            "HEADROOM_KEYSTONE__MOST_WAITING": str(MOST_WAITING),
            "HEADROOM_KEYSTONE__TIMEOUT_SECONDS": "60",
        },
    ) as server:
        yield server


def assert_told_to_come_back(answer: Answer) -> None:
    assert answer.status == 503, answer.body
    assert int(answer.headers["retry-after"]) >= 1


def all_but_those_who_wait(
    pending: Collection[Future[Answer]],
) -> tuple[list[Future[Answer]], list[Future[Answer]]]:
    """Wait until only as many wait as may; return the answered ones and these."""
    assert wait_until(
        lambda: sum(not answer.done() for answer in pending) <= MOST_WAITING, PATIENCE_SECONDS
    )
    return [item for item in pending if item.done()], [item for item in pending if not item.done()]


def test_a_keystone_that_does_not_answer_holds_up_few_and_nobody_who_is_known(
    web: WebServer, keystone: Keystone, proxy: SlowProxy
) -> None:
    make_group()
    known = keystone.new_token(keystone.person("limes", "cloud_resource_admin", "admin"))
    assert web.send("GET", INFO, token=known).status == 200
    proxy.hold()
    with ThreadPoolExecutor(MANY) as pool:
        pending = [
            pool.submit(web.send, "GET", path, token=f"new-token-{number}")
            for number in range(MANY // 3)
            for path in (INFO, PROVIDERS, DRILLS)
        ]
        refused, rest = all_but_those_who_wait(pending)
        for path in (INFO, PROVIDERS, DRILLS):
            assert web.send("GET", path, token=known).status == 200
        assert web.send("GET", "/healthz").status == 200
        assert web.send("GET", "/readyz").status in {200, 503}
        assert web.send("GET", "/metrics").status == 200
        proxy.release()
    for item in refused:
        assert_told_to_come_back(item.result())
    assert [item.result().status for item in rest] == [401] * MOST_WAITING


def test_all_that_wait_for_one_token_share_one_validation(
    web: WebServer, keystone: Keystone, proxy: SlowProxy
) -> None:
    make_group()
    known = keystone.new_token(keystone.person("limes", "cloud_resource_admin", "admin"))
    assert web.send("GET", INFO, token=known).status == 200  # so that our own login is done
    fresh = keystone.new_token(keystone.person("viewer", "cloud_resource_viewer"))
    proxy.held.clear()
    proxy.hold()
    with ThreadPoolExecutor(MANY) as pool:
        pending = [pool.submit(web.send, "GET", INFO, token=fresh) for _ in range(MANY)]
        refused, rest = all_but_those_who_wait(pending)
        proxy.release()
    for item in refused:
        assert_told_to_come_back(item.result())
    assert [item.result().status for item in rest] == [200] * MOST_WAITING
    assert b"".join(proxy.held).count(b"GET /v3/auth/tokens") == 1
