"""What tests of the mirror share."""

from __future__ import annotations

from bridge.kube.definitions import Definition, await_served, install
from bridge.kube.door import Door
from config.launcher.processes import wait_until

SECONDS = 30.0


def install_kinds(door: Door, definitions: list[Definition]) -> None:
    """Install definitions and wait until objects can be read, which is a little later."""
    for definition in definitions:
        install(door, definition)
    assert await_served(door, definitions, wait=lambda done: wait_until(done, SECONDS))

    def are_listed() -> bool:
        for definition in definitions:
            spec = definition.manifest["spec"]
            path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
            if door.request("GET", path)[0] != 200:
                return False
        return True

    assert wait_until(are_listed, SECONDS)
