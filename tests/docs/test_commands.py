"""``docs/commands.md`` lists the commands that there are, and their names follow its scheme."""

from __future__ import annotations

import re
from pathlib import Path

from django.apps import apps
from django.core.management import get_commands, load_command_class

from tests.docs.tour import ROOT

ROW = re.compile(r"^\| (`[a-z0-9_`, ]+`) \| .+ \|$", re.MULTILINE)
VERBS = {
    "check", "compact", "configure", "connect", "doctor", "dump", "export", "generate", "hold",
    "import", "install", "listen", "make", "migrate", "mirror", "onboard", "rebalance", "reconcile",
    "refresh", "replay", "set", "show", "simulate", "sync", "verify", "watch",
}  # fmt: skip
APIS = ("placement_", "host_agent")


def our_commands() -> dict[str, str]:
    """Return our commands, by name, with the app of each."""
    ours = {config.name for config in apps.get_app_configs() if _is_ours(config.path)}
    return {name: str(app) for name, app in get_commands().items() if app in ours}


def _is_ours(path: str) -> bool:
    folder = Path(path)
    return folder.parent == ROOT


def test_every_command_is_listed_once() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    listed = [name for row in ROW.findall(text) for name in re.findall(r"`([a-z0-9_]+)`", row)]
    assert sorted(listed) == sorted(our_commands())


def test_names_follow_one_scheme_and_commands_say_what_they_do() -> None:
    commands = our_commands()
    odd = [
        name
        for name in commands
        if not name.startswith(APIS) and name.partition("_")[0] not in VERBS
    ]
    assert odd == []
    silent = [name for name, app in commands.items() if not load_command_class(app, name).help]
    assert silent == []
