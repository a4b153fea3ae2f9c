"""Processes that follow the database or the outside, while it switches over to a standby.

The bridge to Kubernetes, the watcher of Hypervisor objects, the listener to Nova's notifications
and who holds polls of agents go on by themselves: what was committed is mirrored, what was heard is
written, and nothing of a past that was lost with its server is told on or believed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from bridge.domain.kinds import PLURALS, Naming
from bridge.kube.client import ClusterClient
from bridge.kube.definitions import load_definitions
from config.launcher.processes import wait_until
from tests.bridge.hypervisor_objects import hypervisor_object
from tests.bridge.hypervisor_writer import Objects
from tests.bridge.mirrors import SECONDS, install_kinds
from tests.e2e.own_postgres import OwnPostgres
from tests.e2e.processes import PATIENCE_SECONDS, Process, WebServer, manage
from tests.e2e.switch_load import RESOURCE, TOKENS, SwitchLoad, commitment
from tests.e2e.switched import Servers, switched
from tests.e2e.test_listener_rabbitmq import tell
from tests.hosts.agents.router import Router, Routes, routed
from tests.hosts.agents.test_held_polls import Role
from tests.hosts.agents.test_process import Host
from tests.kube.server import Cluster
from tests.peers.rabbitmq import IS_INSTALLED, RabbitMQ, running_rabbitmq

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.e2e,
    pytest.mark.skipif(not IS_INSTALLED, reason="no RabbitMQ here (Debian: rabbitmq-server)"),
]

SECRET = "followers" * 6
TOKEN = "from tests.hosts.agents.agents import make_token; print(make_token('h1'))"  # noqa: S105 - a script
ENFORCE = "UPDATE hosts_hostagent SET mode = 'enforce' RETURNING 1"
ASK = "from tests.hosts.agents.workloads import make_workload; make_workload({number})"
DEPLOYED = "SELECT 1 FROM hosts_workload WHERE owner_id = %s AND state = 'deployed'"
HOST = "SELECT 1 FROM hosts_host WHERE name = %s"
HINT = "SELECT 1 FROM hosts_feedhint WHERE kind = %s"
BEATEN = "SELECT 1 FROM journal_heartbeat WHERE name = 'listener'"
WRITTEN = """
SELECT 1 FROM bridge_mirrorstate AS state JOIN commitments_commitment AS row
    ON state.kind = 'CommittedResource' AND row.id = state.source_id
 WHERE row.commitment_uuid = %s AND state.written_at IS NOT NULL
"""
KEPT = "SELECT disabled_reason FROM hosts_host WHERE name = %s"
CHANGE = "UPDATE hosts_host SET disabled_reason = %s WHERE name = %s"
#: Run on a server: each object of the cluster is what its row says, and nobody else changed it.
EQUAL = """
from pathlib import Path
from bridge.models import MirrorState
from config.launcher.processes import wait_until
from tests.bridge.mirrors import SECONDS, assert_equal
from tests.kube.server import Cluster

cluster = Cluster(kubeconfig=Path({kubeconfig!r}))

def is_equal():
    try:
        assert_equal(cluster)
    except AssertionError:
        return False
    return True

assert wait_until(is_equal, 2 * SECONDS) or assert_equal(cluster)
assert not MirrorState.objects.exclude(drifts=0).exists()
print("equal")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """An installation on a primary and its standby, with what its processes follow."""

    servers: Servers
    web: WebServer
    followers: tuple[Process, ...]
    cluster: Cluster
    objects: Objects
    rabbit: RabbitMQ
    host: Host
    overrides: dict[str, str]

    def run(self, server: OwnPostgres, *command: str) -> str:
        """Run a command of ours on a server."""
        return manage(
            self.web.directory, *command, **(self.overrides | {"DATABASE_URL": server.url})
        )

    def log(self) -> str:
        return "\n".join(one.log() for one in self.followers)


@pytest.fixture
def cluster(api_server: Cluster) -> Iterator[Cluster]:
    client = ClusterClient(
        kubeconfig=api_server.kubeconfig, context="", timeout_seconds=SECONDS, threads=2
    )
    install_kinds(client, load_definitions(Naming()))
    client.close()
    yield api_server
    every = ",".join(f"{plural}.cortex.cloud" for plural in PLURALS.values())
    api_server.kubectl("delete", every, "--all", "--wait=false")


@pytest.fixture
def objects(cluster: Cluster) -> Iterator[Objects]:
    made = Objects(cluster)
    made.define()
    yield made
    made.close()


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    migrated: Path,
    cluster: Cluster,
    objects: Objects,
) -> Iterator[Site]:
    with ExitStack() as held:
        servers = held.enter_context(switched(tmp_path, migrated, is_pooled=request.param))
        rabbit = held.enter_context(running_rabbitmq(tmp_path))
        overrides = {
            "DATABASE_URL": servers.url,
            "HEADROOM_SECRET_KEY": SECRET,
            "HEADROOM_TOKENS": TOKENS,
            "HEADROOM_AGENTS__HEARTBEAT_SECONDS": "0.5",
            "HEADROOM_BRIDGE__CLUSTERS": json.dumps(
                [{"name": "test", "kubeconfig": str(cluster.kubeconfig)}]
            ),
            "HEADROOM_BRIDGE__COMPARE_INTERVAL_SECONDS": "1",
            "HEADROOM_BRIDGE__HOST_INTERVAL_SECONDS": "0",
            "HEADROOM_BRIDGE__METRICS_PORT": "0",
            "HEADROOM_HYPERVISORS__SYNC": "import",
            "HEADROOM_HYPERVISORS__KUBECONFIG": str(cluster.kubeconfig),
            "HEADROOM_HYPERVISORS__GATHER_SECONDS": "0",
            "HEADROOM_HYPERVISORS__METRICS_PORT": "0",
            "HEADROOM_LISTENER__TRANSPORT_URL": rabbit.url,
            "HEADROOM_LISTENER__METRICS_PORT": "0",
        }
        web = WebServer(directory=tmp_path, overrides={**overrides, "GRANIAN_WORKERS": "1"})
        polls = Role(tmp_path, **overrides)
        polls.overrides["HEADROOM_SECRET_KEY"] = SECRET
        others = [
            Process(role=role, directory=tmp_path, overrides=dict(overrides))
            for role in ("bridge", "hypervisors", "listener")
        ]
        for process in (*others, polls, web):
            held.callback(process.end)
            process.start()
        router = held.enter_context(routed(Routes(polls=polls.port, web=web.port)))
        host = agent(tmp_path, router, servers.primary, overrides)
        held.callback(host.end)
        yield Site(
            servers=servers,
            web=web,
            followers=(*others, polls),
            cluster=cluster,
            objects=objects,
            rabbit=rabbit,
            host=host,
            overrides=overrides,
        )


def agent(directory: Path, router: Router, server: OwnPostgres, overrides: dict[str, str]) -> Host:
    """Return a host whose agent runs and makes what it is asked for."""
    host = Host(directory / "host", router.url)
    host.environment |= {
        "PATH": "",
        "HEADROOM_AGENT__ENFORCE": "true",
        "HEADROOM_AGENT__POLL__MIN_INTERVAL": "1",
    }
    own = overrides | {"DATABASE_URL": server.url}
    code, said = host.enrol(manage(directory, "shell", "-c", TOKEN, **own).split()[-1])
    assert code == 0, said
    assert one(server, ENFORCE)
    host.start("run")
    return host


def one(server: OwnPostgres, query: str, *values: str) -> object:
    """Return the first column of the only row; None if there is none."""
    with server.connect() as link:
        found = link.execute(query.encode(), values).fetchall()
    return found[0][0] if found else None


def becomes(server: OwnPostgres, query: str, *values: str) -> bool:
    return wait_until(lambda: bool(one(server, query, *values)), PATIENCE_SECONDS)


def see_all_work(site: Site, server: OwnPostgres, number: int) -> str:
    """Have every process do something on a server; return the uuid of a new commitment."""
    name = str(uuid4())

    def is_committed() -> bool:
        version = int(site.web.send("GET", "/commitments/v1/info").json()["version"])
        asked = commitment(name, version)
        answer = site.web.send("POST", "/commitments/v1/change-commitments", asked)
        return answer.status == 200

    assert wait_until(is_committed, PATIENCE_SECONDS), RESOURCE
    assert becomes(server, WRITTEN, name), site.log()
    node = f"node{number}"
    site.objects.put(hypervisor_object(node))
    assert becomes(server, HOST, node), site.log()
    site.run(server, "shell", "-c", ASK.format(number=number))
    assert becomes(server, DEPLOYED, str(number)), site.log()
    tell(site.rabbit, "instance-create-end" if number % 2 else "flavor-create")
    assert becomes(server, HINT, "servers" if number % 2 else "flavors"), site.log()
    return name


def assert_mirrored(site: Site) -> None:
    """Compare the cluster with the rows of the standby, once nothing changes any more."""
    site.host.end()
    text = EQUAL.format(kubeconfig=str(site.cluster.kubeconfig))
    assert "equal" in site.run(site.servers.standby, "shell", "-c", text)


def assert_all_run(site: Site) -> None:
    for process in (site.web, *site.followers):
        assert process.child is not None
        assert process.child.process.poll() is None, process.log()


@pytest.mark.parametrize("site", [False], ids=["all servers named"], indirect=True)
def test_followers_go_on_where_nothing_was_lost(site: Site) -> None:
    servers = site.servers
    servers.primary.commit_on_standbys()
    assert becomes(servers.primary, BEATEN), site.log()
    see_all_work(site, servers.primary, 1)
    with SwitchLoad(site.web, clients={"change": 1, "boot": 1}) as load:
        load.go_on()
        servers.primary.kill()
        load.meet_outage()
        servers.promote()
        load.go_on()
    load.assert_only_told_to_come_back()
    see_all_work(site, servers.standby, 2)
    assert_mirrored(site)
    assert_all_run(site)


@pytest.mark.parametrize("site", [True], ids=["behind a pooler"], indirect=True)
def test_followers_believe_nothing_of_a_past_that_was_lost(site: Site) -> None:
    servers = site.servers
    assert becomes(servers.primary, BEATEN), site.log()
    see_all_work(site, servers.primary, 1)
    assert wait_until(lambda: servers.standby.has_all_of(servers.primary), PATIENCE_SECONDS)

    servers.standby.lose_primary()
    lost = see_all_work(site, servers.primary, 2)
    with servers.primary.connect() as link:
        link.execute(CHANGE.encode(), ["lost", "h2"])

    def shows(text: str) -> bool:
        found = site.cluster.get("hosts.cortex.cloud", "h2")
        return bool(found["spec"].get("disabledReason", "") == text)

    assert wait_until(lambda: shows("lost"), PATIENCE_SECONDS), site.log()

    servers.primary.kill()
    servers.promote()
    site.run(servers.standby, "host_agent", "timeline", "renew")  # as the manual has it
    kept = see_all_work(site, servers.standby, 3)
    assert becomes(servers.standby, HOST, "node2"), site.log()
    assert wait_until(lambda: shows(""), PATIENCE_SECONDS), site.log()
    assert_mirrored(site)
    with servers.standby.connect() as link:
        rows = link.execute("SELECT commitment_uuid FROM commitments_commitment").fetchall()
    known = {str(uuid) for (uuid,) in rows}
    assert (kept in known, lost in known) == (True, False)
    assert_all_run(site)
