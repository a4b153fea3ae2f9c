"""What runs in Nova's scheduler (clients/nova), against the endpoint that it asks."""

from __future__ import annotations

import copy
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from headroom_nova.client import CLOSED, OPEN, Client, UnansweredError
from headroom_nova.intent import KnownServer, intent_of
from headroom_nova.wire import AnswerError, body_of, ranks_of
from oslo_config import cfg

from capacity.models import SchedulingDecision
from cloud.configs import ini
from tests.api.scheduler_client import DATA, PATH, SCHEDULER, NovaClient, recorded_request
from tests.factories import make_hosts

HOSTS = [("h1", "n1"), ("h2", "n2"), ("h3", "n3")]


Asking = Callable[..., Client]


@pytest.fixture
def asking(tmp_path: Path) -> Asking:
    """Make a client of a file as Nova reads it: ``asking(URL, option=...)``."""

    def make(url: str, **options: object) -> Client:
        login = {"auth_type": "admin_token", "endpoint": url, "token": SCHEDULER}
        path = tmp_path / "nova.conf"
        path.write_text(ini({"headroom": {"url": url, **login, **options}}), encoding="utf-8")
        conf = cfg.ConfigOpts()
        conf(["--config-file", str(path)])
        return Client(conf)

    return make


@pytest.mark.parametrize(
    ("server", "ignored", "intent"),
    [
        (None, (), ""),
        (KnownServer(is_new=True), (), "create"),
        (KnownServer(task_state="scheduling"), (), "create"),
        (KnownServer(task_state="unshelving"), (), "create"),
        (KnownServer(task_state="resize_prep", host="h1"), ("h1",), "resize"),
        (KnownServer(task_state="migrating", host="h1"), ("h1",), "live_migrate"),
        (KnownServer(task_state="rebuilding", host="h1"), ("h1",), "evacuate"),
        (KnownServer(task_state="rebuilding", host="h1"), (), ""),
        (KnownServer(task_state="powering-off", host="h1"), (), ""),
        (KnownServer(host="h1"), ("h1",), ""),
    ],
)
def test_the_intent_follows_from_what_is_done_with_the_server(
    server: KnownServer | None, ignored: tuple[str, ...], intent: str
) -> None:
    assert intent_of(server, ignored) == intent


def test_the_body_tells_hosts_and_intent_and_keeps_the_token() -> None:
    recorded = recorded_request()
    spec, context = recorded["spec"], {**recorded["context"], "auth_token": "secret"}
    before = copy.deepcopy(spec)
    body = body_of(spec, context, HOSTS, intent="live_migrate", source_host="h9")
    assert spec == before
    assert "auth_token" not in body["context"]
    assert body["hosts"][1] == {"host": "h2", "hypervisor_hostname": "n2"}
    assert body["weights"] == {"h1": 0.0, "h2": 0.0, "h3": 0.0}
    assert body["spec"][DATA]["scheduler_hints"] == {
        "_nova_check_type": ["live_migrate"],
        "source_host": ["h9"],
    }


def test_a_hint_of_novas_own_stays() -> None:
    spec = {DATA: {"scheduler_hints": {"_nova_check_type": ["rebuild"]}}}
    body = body_of(spec, {}, HOSTS, intent="evacuate")
    assert body["spec"][DATA]["scheduler_hints"] == {"_nova_check_type": ["rebuild"]}
    assert body_of({}, {}, HOSTS, intent="")["spec"] == {DATA: {"scheduler_hints": {}}}


def test_the_first_place_of_a_host_counts() -> None:
    assert ranks_of({"hosts": ["b", "a", "b"]}) == {"b": 0, "a": 1}


@pytest.mark.parametrize("answer", [None, [], {}, {"hosts": None}, {"hosts": "h1"}, {"hosts": [1]}])
def test_what_is_no_list_of_hosts_is_no_answer(answer: object) -> None:
    with pytest.raises(AnswerError):
        ranks_of(answer)


@pytest.mark.django_db(transaction=True)
def test_headroom_answers_it_and_keeps_the_intent(
    asking: Asking, nova: NovaClient, live_server: Any
) -> None:
    make_hosts(3)
    asked = nova.body()
    client = asking(live_server.url + PATH)
    ranks = client.ask(
        body_of(asked["spec"], asked["context"], HOSTS, intent="evacuate", source_host="h1")
    )
    assert sorted(ranks.values()) == list(range(len(ranks)))
    assert set(ranks) <= {"h1", "h2", "h3"}
    assert ranks
    assert SchedulingDecision.objects.get().intent == "evacuate"


@pytest.mark.django_db(transaction=True)
def test_a_refusal_is_no_answer(asking: Asking, nova: NovaClient, live_server: Any) -> None:
    client = asking(live_server.url + PATH, token="wrong")
    with pytest.raises(UnansweredError, match="401"):
        client.ask(nova.body())
    client = asking(live_server.url + PATH)
    with pytest.raises(UnansweredError, match="400"):
        client.ask({"hosts": 3})


@contextmanager
def served(*answers: tuple[int, bytes]) -> Iterator[str]:
    """Serve answers, one for each request; none any more is a connection that says nothing."""
    left, may_end = list(answers), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if not left:
                may_end.wait(timeout=30)
                return
            status, content = left.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            may_end.set()
            server.shutdown()


def test_whoever_does_not_answer_is_left_alone_for_a_moment(asking: Asking) -> None:
    with served((503, b"busy"), (200, b"<html>"), (200, b'{"hosts": ["h1"]}')) as url:
        client = asking(url, pause_seconds=1000.0)
        assert not client.is_paused()
        for reason in ("503: busy", "Expecting"):
            with pytest.raises(UnansweredError, match=reason):
                client.ask({})
            assert client.is_paused()
        assert client.ask({}) == {"h1": 0}
        assert not client.is_paused()


def test_a_closed_door_is_asked_again_at_once(asking: Asking) -> None:
    with served((500, b"")) as url:
        client = asking(url, on_failure=CLOSED)
        with pytest.raises(UnansweredError):
            client.ask({})
        assert not client.is_paused()


def test_silence_ends_with_the_deadline(asking: Asking) -> None:
    with served() as url:
        client = asking(url, timeout=1, on_failure=OPEN)
        with pytest.raises(UnansweredError):
            client.ask({})
        assert client.is_paused()


def test_nobody_listens_at_a_closed_port(asking: Asking) -> None:
    with served() as url:
        pass
    client = asking(url)
    with pytest.raises(UnansweredError):
        client.ask({})
