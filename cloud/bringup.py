"""Bringing the small cloud up, from empty databases to computes that Headroom's Placement knows."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from cloud.api import Api, in_parallel
from cloud.catalog import make_catalog, make_region
from cloud.configs import INSIDE, database_url, rabbit_conf, write_configs, write_nova_conf
from cloud.layout import ADDRESS, PASSWORD, REGION, Layout, compute_hosts, headroom_variables
from cloud.processes import Processes, answers
from config.launcher.demo import migrate
from config.launcher.places import Checkout
from config.launcher.production import serve_command, serve_environment
from config.launcher.terminal import step

DATABASES = ("keystone", "glance", "neutron", "nova_api", "nova", "nova_cell0")
NOVA_SERVICES = ("nova-api", "nova-conductor", "nova-scheduler")


def bring_up(layout: Layout, processes: Processes, environ: Mapping[str, str]) -> None:
    """Start everything on fresh state.

    Args:
        layout: Where.
        processes: What holds the processes.
        environ: Environment with ``DATABASE_URL`` and ``REDIS_URL`` for Headroom.
    """
    for directory in (layout.state, layout.etc, layout.logs):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    with step("MariaDB and RabbitMQ"):
        write_configs(layout)
        _rabbit(layout, processes)
        _mysql(layout, processes)
    with step("Keystone"):
        _keystone(layout, processes)
    with step("Headroom: web, worker, beat"):
        _headroom(layout, processes, environ)
    with step("tables of Glance, Neutron and Nova"):
        _tables(layout, processes)
    with step("Glance, Neutron and Nova"):
        for name in ("glance", "neutron", *NOVA_SERVICES):
            start_service(layout, processes, name)
        for name, path in (("glance", "/versions"), ("neutron", "/"), ("nova", "/")):
            processes.wait(name, partial(answers, layout.url(name) + path))
    with step(f"{layout.host_count} nova-compute"):
        start_computes(layout, processes, [host.name for host in compute_hosts(layout.host_count)])
        make_region(layout, Api(layout))


def _rabbit(layout: Layout, processes: Processes) -> None:
    home = layout.state / "rabbit"
    home.mkdir()
    (home / "rabbitmq.conf").write_text(rabbit_conf(layout), encoding="utf-8")
    (home / "enabled_plugins").write_text("[].\n", encoding="utf-8")
    quiet = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
    env = {
        **processes.environment(),
        "HOME": str(home),
        "RABBITMQ_NODENAME": f"headroom{layout.base_port}@localhost",
        "ERL_EPMD_PORT": str(layout.port("epmd")),
        "ERL_EPMD_ADDRESS": ADDRESS,
        "RABBITMQ_DIST_PORT": str(layout.port("rabbit_dist")),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_PID_FILE": str(home / "rabbit.pid"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            f"{quiet} -kernel inet_dist_use_interface {{{ADDRESS.replace('.', ',')}}}"
        ),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
    }
    epmd = ["/usr/bin/epmd", "-port", layout.port("epmd"), "-address", ADDRESS]
    processes.start("epmd", epmd, env)
    processes.start("rabbitmq", ["/usr/lib/rabbitmq/bin/rabbitmq-server"], env)


def _mysql(layout: Layout, processes: Processes) -> None:
    data, socket = layout.state / "mysql", layout.home / "mysql.sock"
    socket.unlink(missing_ok=True)  # of a run that was killed: nobody listens there
    processes.run(
        *("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root"),
        *("--skip-test-db", "--auth-root-authentication-method=normal"),
    )
    processes.start(
        "mariadb",
        [
            *("/usr/sbin/mariadbd", "--no-defaults", "--user=root", f"--datadir={data}"),
            *(f"--port={layout.port('mysql')}", f"--bind-address={ADDRESS}", f"--socket={socket}"),
            *("--skip-name-resolve", "--max-connections=2000", "--performance-schema=OFF"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=256M"),
            *("--innodb-doublewrite=0", "--sync-binlog=0"),
        ],
    )
    processes.wait("MariaDB", socket.exists)
    words = [f"CREATE DATABASE {name} CHARACTER SET utf8mb4;" for name in DATABASES]
    words += [
        f"CREATE OR REPLACE USER root@{ADDRESS} IDENTIFIED BY '{PASSWORD}';",
        f"GRANT ALL ON *.* TO root@{ADDRESS} WITH GRANT OPTION;",
    ]
    connect = ("mariadb", "--no-defaults", f"--socket={socket}", "-uroot")
    processes.run(*connect, "-e", "".join(words))


def _keystone(layout: Layout, processes: Processes) -> None:
    manage = (
        layout.venv / "bin" / "keystone-manage",
        "--config-file",
        layout.etc / "keystone.conf",
    )
    keys = ("--keystone-user", "root", "--keystone-group", "root")
    processes.run(*manage, "db_sync")
    processes.run(*manage, "fernet_setup", *keys)
    processes.run(*manage, "credential_setup", *keys)
    url = f"{layout.url('keystone')}/v3/"
    addresses = [f"--bootstrap-{kind}-url={url}" for kind in ("admin", "public", "internal")]
    processes.run(
        *(*manage, "bootstrap", "--bootstrap-password", PASSWORD, *addresses),
        *("--bootstrap-region-id", REGION),
    )
    start_service(layout, processes, "keystone")
    processes.wait("Keystone", partial(answers, f"{layout.url('keystone')}/v3"))
    make_catalog(layout)


def headroom_environment(layout: Layout, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of every process of Headroom."""
    return serve_environment(
        {
            **environ,
            **headroom_variables(layout),
            "PROMETHEUS_MULTIPROC_DIR": str(layout.state / "prometheus"),
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(layout.root),
        }
    )


def _headroom(layout: Layout, processes: Processes, environ: Mapping[str, str]) -> None:
    env = headroom_environment(layout, environ)
    (layout.state / "prometheus").mkdir()
    migrate(Checkout(root=layout.root), env)
    serve_headroom(layout, processes, env, ("web", "worker", "beat"))
    processes.wait("Headroom", partial(answers, f"{layout.url('headroom')}/healthz"))


def serve_headroom(
    layout: Layout, processes: Processes, env: Mapping[str, str], roles: Iterable[str]
) -> None:
    """Start processes of Headroom in the environment of :func:`headroom_environment`."""
    for role in roles:
        kind = {"HEADROOM_PROCESS": "web" if role == "web" else "worker"}
        arguments = ["--concurrency", "2"] if role == "worker" else []
        command = serve_command(Checkout(root=layout.root), role, arguments)
        processes.start(role, command, {**env, **kind})


def _tables(layout: Layout, processes: Processes) -> None:
    makers = (_glance_tables, _neutron_tables, _nova_tables)
    in_parallel(lambda make: make(layout, processes), makers)


def _glance_tables(layout: Layout, processes: Processes) -> None:
    program = layout.venv / "bin" / "glance-manage"
    conf = layout.etc / "glance" / "glance-api.conf"
    processes.run(program, "--config-file", conf, "db_sync")


def _neutron_tables(layout: Layout, processes: Processes) -> None:
    program = layout.venv / "bin" / "neutron-db-manage"
    conf = layout.etc / "neutron" / "neutron.conf"
    plugin = layout.etc / "neutron" / "plugins" / "ml2" / "ml2_conf.ini"
    files = ("--config-file", conf, "--config-file", plugin)
    processes.run(program, *files, "upgrade", "heads")


def _nova_tables(layout: Layout, processes: Processes) -> None:
    nova_manage(layout, processes, "api_db", "sync")
    cell0 = database_url(layout, "nova_cell0")
    nova_manage(layout, processes, "cell_v2", "map_cell0", "--database_connection", cell0)
    nova_manage(layout, processes, "cell_v2", "create_cell", "--name", "cell1")
    nova_manage(layout, processes, "db", "sync")


def nova_manage(layout: Layout, processes: Processes, *words: str) -> None:
    """Run ``nova-manage``."""
    program = layout.venv / "bin" / "nova-manage"
    processes.run(program, "--config-file", layout.etc / "nova.conf", *words)


_MODULES = {
    "keystone": ("keystone.wsgi.api", 2),
    "glance": ("glance.wsgi.api", 1),
    "neutron": ("neutron.wsgi.api", 1),
    "nova-api": ("nova.wsgi.osapi_compute", 2),
}


def start_service(layout: Layout, processes: Processes, name: str) -> None:
    """Start one service of OpenStack."""
    if name in _MODULES:
        module, workers = _MODULES[name]
        port = layout.port(name.removesuffix("-api"))
        python = layout.venv / "bin" / "python"
        processes.start(name, [python, INSIDE / "serve.py", module, port, workers, 8])
    else:
        program = layout.venv / "bin" / name
        processes.start(name, [program, "--config-file", layout.etc / "nova.conf"])


def start_computes(layout: Layout, processes: Processes, hosts: list[str]) -> None:
    """Start the nova-compute of some hosts, and wait until all of them can be given servers."""
    program = [layout.venv / "bin" / "python", INSIDE / "fleet.py", layout.etc, layout.logs]
    started = datetime.now(UTC)
    processes.start(f"fleet-{hosts[0]}", [*program, *hosts])
    api = Api(layout)
    wanted = set(hosts)
    processes.wait("nova-compute", lambda: wanted <= api.hosts_reported_since(started))
    nova_manage(layout, processes, "cell_v2", "discover_hosts")
    processes.wait("hypervisors", lambda: wanted <= set(api.hypervisors()))
    processes.wait("providers", lambda: wanted <= set(api.providers()))


@contextmanager
def stopped_compute(layout: Layout, processes: Processes, api: Api, host: str) -> Generator[None]:
    """Have a nova-compute stopped and forced down, then started and rid of what left it."""
    processes.stop_compute(host)
    service = next(one for one in api.compute_services() if one["host"] == host)
    path = f"/os-services/{service['id']}"
    api.nova("PUT", path, {"forced_down": True})
    yield
    start_computes(layout, processes, [host])
    api.nova("PUT", path, {"forced_down": False})  # refused until it has cleaned up
    gone = f"/resource_providers/{api.providers()[host]}/allocations"
    processes.wait(
        f"{host} to give evacuated room back",
        lambda: not api.placement("GET", gone)["allocations"],
    )


def ask_outside(layout: Layout, processes: Processes) -> None:
    """Make Nova's scheduler ask Headroom's external scheduler from now on."""
    url = f"{layout.url('headroom')}/scheduler/nova/external"
    layout.external_url_file.write_text(url, encoding="utf-8")
    write_nova_conf(layout)
    processes.stop("nova-scheduler")
    start_service(layout, processes, "nova-scheduler")
