"""What the agent has no words for, wherever in its code (spec hosts, D.10; its "never")."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from config.launcher.places import this_checkout
from hosts.agents.urls import urlpatterns

AGENT = this_checkout().root / "clients/agent/headroom_host_agent"
LIBVIRT = AGENT / "resources/libvirt.py"
#: All that is called of libvirt: it reads and listens.
READING = {
    "openReadOnly",
    "isAlive",
    "listAllDomains",
    "domainEventRegisterAny",
    "registerErrorHandler",
    "virEventRegisterDefaultImpl",
    "virEventAddTimeout",
    "virEventRemoveTimeout",
    "virEventRunDefaultImpl",
    "info",
    "XMLDesc",
    "UUIDString",
    "name",
    "get_error_code",
}
HOLDERS = {"library", "_library", "connection", "_connection", "domain", "libvirt", "error"}
#: Commands that are run, and where: project quotas, which nothing but these sets.
PROGRAMS = {"provision/built_in/disk_quota.py": {"chattr", "setquota"}}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(AGENT.rglob("*.py")):
        yield str(path.relative_to(AGENT)), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


def called(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the last name of what a method is called on, and the method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            holder = node.func.value
            last = getattr(holder, "id", getattr(holder, "attr", ""))
            yield last, node.func.attr


def test_libvirt_is_only_read_and_from_one_module() -> None:
    users = [name for name, tree in modules() if "libvirt" in ast.dump(tree).split("'")]
    assert users == [str(LIBVIRT.relative_to(AGENT))]
    tree = ast.parse(LIBVIRT.read_text(encoding="utf-8"))
    asked = {method for holder, method in called(tree) if holder in HOLDERS}
    assert "openReadOnly" in asked
    assert asked <= READING


def test_no_program_is_run_but_for_quotas_so_nothing_updates_itself_or_the_host() -> None:
    for name, tree in modules():
        runs = {"subprocess", "pty", "multiprocessing"} & imported(tree)
        assert (runs == {"subprocess"}) == (name in PROGRAMS), name
        assert not {"pip", "ensurepip", "urllib.request", "runpy"} & imported(tree), name
        words = {method for holder, method in called(tree) if holder == "os"}
        assert not [word for word in words if word.startswith(("exec", "spawn", "popen"))], name
        assert not words & {"system", "posix_spawn", "fork"}, name
        assert not {"clock_settime", "clock_settime_ns"} & {method for _, method in called(tree)}
    (where,) = PROGRAMS
    text = Path(AGENT / where).read_text(encoding="utf-8")
    assert all(program in text for program in PROGRAMS[where])


def test_agents_have_no_call_that_says_that_a_vm_or_a_host_is_dead() -> None:
    """All that is taken of them: who they are, what they have, what became of what was asked."""
    assert {one.name for one in urlpatterns} == {
        "enrol",
        "heartbeat",
        "keys",
        "key",
        "reservations",
        "reservation",
        "result",
        "deleted",
        "instances",
        "stats",
        "resources",
    }
