from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from config.launcher.demo import choose_port, parse_demo
from config.launcher.environment import fingerprint
from config.launcher.places import Checkout, this_checkout
from config.launcher.processes import run_in_foreground, wait_until
from config.launcher.production import serve_environment
from config.launcher.receiver import is_ours, kept_secret
from config.launcher.settings import demo_environment, tool_environment, with_placement_checks
from config.launcher.terminal import LauncherError
from tests.launcher.conftest import processes_of
from webhooks.domain.message import secrets_of

PATIENCE_SECONDS = 30.0
ANYWHERE = "0.0.0.0"  # noqa: S104 - never bound

MANAGE = """
import os, sys
if sys.argv[1] == "set_up_demo":
    print("[demo] loading")
    print("skipped host h1: no zone")
    # In one piece: print writes the end of the line apart where Python does not buffer.
    sys.stderr.write(os.environ.get("HEADROOM_LOG_FILE", "no file") + "\\n")
    print("admin login: admin / secret")
elif sys.argv[1] == "fail":
    sys.exit(7)
else:
    print(" ".join(sys.argv[1:]), os.environ["DATABASE_URL"][:10], os.environ["HEADROOM_AUTH"])
"""
GRANIAN = """
import http.server, signal, sys
class Healthz(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Healthz).serve_forever()
"""
CELERY = """
import os, signal, sys
if os.path.exists("stubborn"):
    for signum in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_IGN)
if "beat" in sys.argv and os.path.exists("beat-fails"):
    print("beat has no schedule")
    sys.exit(9)
while True:
    signal.pause()
"""


@pytest.fixture
def environ() -> dict[str, str]:
    left_out = ("HEADROOM_", "DATABASE_URL", "REDIS_URL", "DJANGO_")
    return {name: text for name, text in os.environ.items() if not name.startswith(left_out)}


OLD_PYTHONS = ("2.7", "3.5", "3.6", "3.7", "3.8", "3.9", "3.10")


def old_pythons() -> list[str]:
    """Return the interpreters on this machine that are too old for Headroom."""
    names = (f"python{version}" for version in OLD_PYTHONS)
    on_path = [found for name in names if (found := shutil.which(name))]
    kept = Path.home() / ".pyenv" / "versions"
    return on_path + [
        str(python)
        for version in OLD_PYTHONS
        for python in sorted(kept.glob(f"{version}.*/bin/python"))
    ]


def test_nothing_in_run_is_too_new_for_an_old_python_before_the_version_is_checked() -> None:
    """The whole file is compiled before its first line runs."""
    source = (this_checkout().root / "run").read_text(encoding="utf-8")
    parsed = ast.parse(source, feature_version=(3, 4))
    imported = [node for node in ast.walk(parsed) if isinstance(node, ast.ImportFrom)]
    assert "__future__" not in {node.module for node in imported}
    assert not [
        node for node in ast.walk(parsed) if isinstance(node, ast.JoinedStr | ast.AnnAssign)
    ]
    kinds = [type(node) for node in parsed.body]
    assert kinds[:4] == [ast.Expr, ast.Import, ast.If, ast.ImportFrom]


def test_an_unsupported_python_gets_the_version_message() -> None:
    run = str(this_checkout().root / "run")
    tried = 0
    for python in old_pythons():
        said = subprocess.run([python, run, "demo"], capture_output=True, text=True, check=False)
        if said.returncode == 127 or "pyenv" in said.stderr:
            continue  # a stand-in without an interpreter behind it
        tried += 1
        assert said.returncode == 1
        assert said.stderr.startswith("headroom: Python 3.11 or newer is needed, this is ")
        assert said.stderr.count("\n") == 1
    if not tried:
        pytest.skip("no Python older than 3.11 on this machine")


@pytest.fixture
def project(checkout: Checkout) -> Checkout:
    """A checkout with the real launcher and stand-ins for Django, the web server and Celery."""
    shutil.copy(this_checkout().root / "run", checkout.root)
    (checkout.root / "config").mkdir()
    (checkout.root / "config" / "__init__.py").touch()
    shutil.copy(this_checkout().root / "config" / "queues.py", checkout.root / "config")
    shutil.copytree(
        this_checkout().root / "config" / "launcher",
        checkout.root / "config" / "launcher",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    stand_ins = {"manage.py": MANAGE, "config/server.py": GRANIAN, "celery.py": CELERY}
    for name, text in {**stand_ins, "requirements.lock": "", "requirements-dev.lock": ""}.items():
        (checkout.root / name).write_text(text)
    stamp = {"dev": fingerprint(checkout, "dev")}
    (checkout.venv / "headroom-requirements.json").write_text(json.dumps(stamp))
    return checkout


IGNORING = """
import os, signal, sys
count = int(sys.argv[1])
for signum in sys.argv[2:2 + count]:
    signal.signal(int(signum), signal.SIG_IGN)
os.execv(sys.argv[2 + count], sys.argv[2 + count:])
"""


def start_demo(
    project: Checkout,
    environ: Mapping[str, str],
    *arguments: str,
    ignored: Sequence[signal.Signals] = (),
) -> subprocess.Popen[str]:
    """Start the demo; some signals are ignored from the start, as in a shell's background jobs."""
    before = [
        sys.executable,
        "-c",
        IGNORING,
        str(len(ignored)),
        *(str(int(one)) for one in ignored),
    ]
    return subprocess.Popen(
        [*before, sys.executable, str(project.root / "run"), "demo", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
    )


def read_until(process: subprocess.Popen[str], start: str) -> list[str]:
    lines: list[str] = []
    for line in process.stdout or ():
        lines.append(line.rstrip())
        if line.startswith(start):
            return lines
    raise AssertionError("\n".join(lines))


@pytest.mark.e2e
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_the_demo_and_all_its_processes(
    project: Checkout, environ: dict[str, str], signum: int
) -> None:
    demo = start_demo(project, environ)
    said = read_until(demo, "Ctrl-C")
    log = project.logs / "set_up_demo.log"
    assert "  loading" in said
    assert "  skipped host h1: no zone" not in said
    assert log.read_text().splitlines() == ["[demo] loading", "skipped host h1: no zone"]
    assert str(log) in said  # where the region's log lines go
    assert said[-2:] == ["admin login: admin / secret", said[-1]]
    assert said[-3].startswith("ready: http://127.0.0.1:")
    demo.send_signal(signum)
    demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 0
    assert processes_of(project) == []


@pytest.mark.e2e
def test_a_verbose_demo_shows_all_that_is_said_and_logs_it_too(
    project: Checkout, environ: dict[str, str]
) -> None:
    demo = start_demo(project, environ, "--verbose")
    said = read_until(demo, "ready:")
    demo.terminate()
    demo.communicate(timeout=PATIENCE_SECONDS)
    for line in ("  loading", "  skipped host h1: no zone", "  no file"):
        assert line in said
    logged = (project.logs / "set_up_demo.log").read_text().splitlines()
    assert {"skipped host h1: no zone", "no file"} <= set(logged)


@pytest.mark.e2e
def test_a_fresh_demo_does_not_live_as_fast_as_the_one_before(
    project: Checkout, environ: dict[str, str]
) -> None:
    speed = project.local / "demo-speed"
    speed.write_text("20\n")
    demo = start_demo(project, environ, "--fresh")
    read_until(demo, "ready:")
    assert not speed.exists()
    demo.terminate()
    demo.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.e2e
def test_processes_that_ignore_signals_are_killed_in_the_end(
    project: Checkout, environ: dict[str, str]
) -> None:
    (project.root / "stubborn").touch()
    demo = start_demo(project, environ)
    read_until(demo, "ready:")
    demo.terminate()
    demo.communicate(timeout=PATIENCE_SECONDS)
    assert processes_of(project) == []


@pytest.mark.e2e
@pytest.mark.parametrize(
    "ignored", [(), (signal.SIGINT, signal.SIGQUIT)], ids=["job", "background"]
)
def test_killed_demo_takes_all_its_processes_along(
    project: Checkout, environ: dict[str, str], ignored: tuple[signal.Signals, ...]
) -> None:
    demo = start_demo(project, environ, ignored=ignored)
    read_until(demo, "ready:")
    demo.kill()
    demo.communicate()
    assert wait_until(lambda: processes_of(project) == [], PATIENCE_SECONDS)


@pytest.mark.e2e
def test_process_that_dies_is_named_with_its_last_words_and_ends_the_demo(
    project: Checkout, environ: dict[str, str]
) -> None:
    (project.root / "beat-fails").touch()
    demo = start_demo(project, environ)
    said, _ = demo.communicate(timeout=PATIENCE_SECONDS)
    assert demo.returncode == 1
    assert "beat ended with exit status 9" in said
    assert "beat has no schedule" in said
    assert processes_of(project) == []


@pytest.mark.e2e
def test_second_demo_in_a_checkout_is_refused_but_manage_joins_it(
    project: Checkout, environ: dict[str, str]
) -> None:
    demo = start_demo(project, environ)
    read_until(demo, "ready:")
    run = [sys.executable, str(project.root / "run")]
    second = subprocess.run(
        [*run, "demo"], env=environ, capture_output=True, text=True, check=False
    )
    assert second.returncode == 1
    assert "already" in second.stderr
    joined = subprocess.run(
        [*run, "manage", "x", "--y"], env=environ, capture_output=True, check=False
    )
    assert joined.stdout == b"x --y postgresql noauth\n"
    failed = subprocess.run([*run, "manage", "fail"], env=environ, capture_output=True, check=False)
    assert failed.returncode == 7
    assert demo.poll() is None
    demo.terminate()
    demo.communicate(timeout=PATIENCE_SECONDS)
    assert processes_of(project) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param([], 2, "usage", id="no command"),
        pytest.param(["help"], 0, "usage", id="help"),
        pytest.param(["dance"], 2, "unknown command dance", id="unknown command"),
        pytest.param(["conformance", "--what"], 2, "unrecognized arguments", id="conformance"),
        pytest.param(["serve", "shop"], 1, "allowed are web, worker, beat", id="unknown role"),
        pytest.param(["serve"], 1, "needs DATABASE_URL and REDIS_URL", id="serve with nothing"),
        pytest.param(["install", "all"], 1, "takes no arguments", id="install something"),
        pytest.param(["lock", "all"], 1, "takes no arguments", id="lock something"),
        pytest.param(["demo", "--import", "gone.json"], 2, "no such file", id="missing file"),
        pytest.param(["demo", "--hosts", "0"], 2, "at least 1", id="no hosts"),
        pytest.param(["demo", "--port", "70000"], 2, "0 to 65535", id="impossible port"),
    ],
)
def test_command_line_is_answered_clearly(
    project: Checkout, environ: dict[str, str], arguments: list[str], code: int, message: str
) -> None:
    run = [sys.executable, str(project.root / "run"), *arguments]
    answer = subprocess.run(run, env=environ, capture_output=True, text=True, check=False)
    assert answer.returncode == code
    assert message in answer.stdout + answer.stderr


def test_serve_installs_nothing(project: Checkout, environ: dict[str, str]) -> None:
    (project.root / "requirements.lock").write_text("never-to-be-had==1\n")
    (project.root / "requirements-dev.lock").write_text("never-to-be-had==1\n")
    run = [sys.executable, str(project.root / "run"), "serve"]
    answer = subprocess.run(run, env=environ, capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "is missing or not what requirements.lock says: ./run install" in answer.stderr
    assert not (project.logs / "pip.log").exists()


def test_taken_port_that_was_asked_for_is_refused_and_a_free_one_taken() -> None:
    with socket.socket() as held:
        # Until somebody listens a port can be had again, by those alone who ask for that one.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert choose_port(port) == port
        held.listen()
        with pytest.raises(LauncherError, match=f"port {port} is taken"):
            choose_port(port)
        assert choose_port(0) not in {0, port}


def test_default_port_gives_way_to_the_next_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        monkeypatch.setattr("config.launcher.demo.DEFAULT_PORT", port)
        assert choose_port(None) > port


def test_demo_options_are_read(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        file.touch()
    line = ["--no-worker", "--fresh", "--hosts", "7", "--port", "0"]
    options = parse_demo([*line, "--import", str(files[0]), "--import", str(files[1])])
    assert (options.with_worker, options.fresh, options.hosts, options.port) == (False, True, 7, 0)
    assert options.imports == tuple(files)
    assert options.is_quiet
    assert not options.with_agents
    assert not options.with_receiver
    assert parse_demo(["--quiet-region"]).with_receiver


@pytest.mark.parametrize("option", ["--no-agents", "--no-worker"])
def test_hosts_of_the_demo_have_agents_unless_they_are_not_wanted(option: str) -> None:
    assert parse_demo([]).with_agents
    assert parse_demo(["--quiet-region"]).with_agents
    assert not parse_demo([option]).with_agents


@pytest.mark.parametrize(
    ("line", "is_quiet", "speed"),
    [
        ([], False, None),
        (["--speed", "0.5"], False, 0.5),
        (["--quiet-region"], True, None),
        (["--no-worker"], True, None),
    ],
)
def test_region_of_the_demo_lives_unless_it_is_to_be_quiet(
    line: list[str], is_quiet: bool, speed: float | None
) -> None:
    options = parse_demo(line)
    assert (options.is_quiet, options.speed) == (is_quiet, speed)


@pytest.mark.parametrize("speed", ["-1", "21", "nan", "fast"])
def test_speed_of_the_region_has_limits(speed: str) -> None:
    with pytest.raises(SystemExit):
        parse_demo([f"--speed={speed}"])


@pytest.mark.parametrize(
    ("program", "code"),
    [
        pytest.param("raise SystemExit(5)", 5, id="its own status"),
        pytest.param("import os; os.kill(os.getpid(), 15)", 143, id="a signal, as a shell does"),
    ],
)
def test_exit_status_of_a_command_is_passed_on(tmp_path: Path, program: str, code: int) -> None:
    command = [sys.executable, "-c", program]
    assert run_in_foreground(command, env=os.environ, cwd=tmp_path) == code


def test_demo_settings_give_way_to_the_callers(checkout: Checkout) -> None:
    given = {"HEADROOM_AUTH": "token", "RUN_POSTGRES": "wheel"}
    env = demo_environment(checkout, given, {"REDIS_URL": "r"})
    assert env["HEADROOM_AUTH"] == "token"
    assert env["HEADROOM_DEBUG"] == "true"
    assert "RUN_POSTGRES" not in env
    assert env["REDIS_URL"] == "r"


def test_demo_is_open_to_this_machine_alone(checkout: Checkout) -> None:
    env = demo_environment(checkout, {}, {})
    opened = {name: env[f"HEADROOM_{name}"] for name in ("AUTH", "DEBUG", "LISTEN_ADDRESS")}
    assert opened == {"AUTH": "noauth", "DEBUG": "true", "LISTEN_ADDRESS": "127.0.0.1"}


def test_demo_tells_its_own_receiver_and_checks_its_own_placement(checkout: Checkout) -> None:
    env = with_placement_checks(demo_environment(checkout, {}, {}), "http://127.0.0.1:1/placement")
    assert is_ours(checkout, env)
    assert env["HEADROOM_GATEWAY__CHECKS_URL"] == "http://127.0.0.1:1/placement"


def test_demo_leaves_webhooks_and_a_gateway_of_the_caller_alone(checkout: Checkout) -> None:
    given = {
        "HEADROOM_WEBHOOKS__SECRETS_DIR": "/run/secrets/webhooks",
        "HEADROOM_GATEWAY__UPSTREAM_URL": "http://127.0.0.1:2/placement",
    }
    env = with_placement_checks(demo_environment(checkout, given, {}), "http://127.0.0.1:1")
    assert not is_ours(checkout, env)
    assert "HEADROOM_WEBHOOKS__ALLOW_HTTP" not in env
    assert "HEADROOM_GATEWAY__CHECKS_URL" not in env


def test_secret_of_the_receiver_is_private_and_kept(checkout: Checkout) -> None:
    path = kept_secret(checkout)
    text = path.read_text()
    assert kept_secret(checkout).read_text() == text
    assert len(secrets_of(text)) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_demo_secret_is_private_and_kept(checkout: Checkout) -> None:
    first = demo_environment(checkout, {}, {})["HEADROOM_SECRET_KEY"]
    assert demo_environment(checkout, {}, {})["HEADROOM_SECRET_KEY"] == first
    assert (checkout.local / "demo-secret").stat().st_mode & 0o777 == 0o600


def test_tool_settings_ignore_the_callers(checkout: Checkout) -> None:
    given = {"HEADROOM_DEBUG": "true", "HEADROOM_X": "1", "LANG": "C"}
    env = tool_environment(checkout, given, {})
    assert env["HEADROOM_DEBUG"] == "false"
    assert "HEADROOM_X" not in env
    assert env["LANG"] == "C"
    assert "PYTHONPYCACHEPREFIX" not in env


def test_bytecode_is_kept_though_not_beside_the_sources_if_the_caller_wants_none_there(
    checkout: Checkout,
) -> None:
    env = tool_environment(checkout, {"PYTHONDONTWRITEBYTECODE": "1"}, {})
    kept = "import sys; print(sys.dont_write_bytecode, sys.pycache_prefix)"
    said = subprocess.run(
        [sys.executable, "-c", kept], env=env, capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == ["False", str(checkout.local / "pycache")]


def test_production_settings_of_the_operator_win() -> None:
    given = {"DATABASE_URL": "d", "REDIS_URL": "r", "HEADROOM_LISTEN_ADDRESS": "10.0.0.1"}
    env = serve_environment({**given, "GRANIAN_WORKERS": "9"})
    assert (env["GRANIAN_WORKERS"], env["GRANIAN_HOST"]) == ("9", "10.0.0.1")


@pytest.mark.parametrize(
    ("given", "extra", "expected"),
    [
        pytest.param({}, [], "127.0.0.1", id="nothing"),
        pytest.param({"GRANIAN_HOST": ANYWHERE}, [], ANYWHERE, id="granian's own"),
        pytest.param(
            {"GRANIAN_HOST": ANYWHERE, "HEADROOM_LISTEN_ADDRESS": "127.0.0.1"},
            [],
            "127.0.0.1",
            id="ours wins",
        ),
        pytest.param({}, ["--host", "10.0.0.2"], "10.0.0.2", id="an option"),
        pytest.param({"GRANIAN_HOST": "x"}, ["--host=10.0.0.2"], "10.0.0.2", id="joined option"),
    ],
)
def test_our_address_is_the_one_that_is_bound(
    given: dict[str, str], extra: list[str], expected: str
) -> None:
    env = serve_environment({"DATABASE_URL": "d", "REDIS_URL": "r", **given}, extra)

    assert env["HEADROOM_LISTEN_ADDRESS"] == expected
