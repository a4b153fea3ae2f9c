"""Nova's fake driver with a size, traits and nested providers, and guests that survive a restart.

Copied into Nova's own package, the only place drivers are loaded from; reads ``shape.json`` in the
state directory of its nova-compute. Live migrations wait while the file ``hold-live-migrations``
stands beside these directories.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import nova.conf
from nova.compute import power_state
from nova.virt import fake

Anything = Any  # Nova has no types
_LONGEST_HOLD_SECONDS = 300.0
_POLL_SECONDS = 0.2


class Driver(fake.FakeDriverWithoutFakeNodes):  # type: ignore[misc]  # Nova has no types
    """Hypervisor that runs nothing and remembers what it would run."""

    def __init__(self, virtapi: Anything, read_only: Anything = False) -> None:  # noqa: FBT002
        home = Path(nova.conf.CONF.state_path)
        self._shape = json.loads((home / "shape.json").read_text(encoding="utf-8"))
        self.vcpus = self._shape["vcpus"]
        self.memory_mb = self._shape["memory_mib"]
        self.local_gb = self._shape["disk_gib"]
        super().__init__(virtapi, read_only)
        self.host_status_base["hypervisor_type"] = "QEMU"
        self._guests = home / "guests.json"
        self._live_hold = home.parent / "hold-live-migrations"
        self._saving = threading.Lock()  # calls come in several threads
        if self._guests.exists():
            for uuid, (name, state) in json.loads(self._guests.read_text("utf-8")).items():
                self.instances[uuid] = fake.FakeInstance(name, state, uuid)

    def _save(self) -> None:
        with self._saving:
            known = {uuid: (one.name, one.state) for uuid, one in list(self.instances.items())}
            fresh = self._guests.with_suffix(".new")
            fresh.write_text(json.dumps(known), encoding="utf-8")
            fresh.replace(self._guests)

    def spawn(self, *args: Anything, **kwargs: Anything) -> None:
        """Start a guest."""
        super().spawn(*args, **kwargs)
        self._save()

    def destroy(self, *args: Anything, **kwargs: Anything) -> None:
        """Remove a guest."""
        super().destroy(*args, **kwargs)
        self._save()

    def finish_revert_migration(self, *args: Anything, **kwargs: Anything) -> None:
        """Take a guest back."""
        super().finish_revert_migration(*args, **kwargs)
        self._save()

    def power_off(self, instance: Anything, *args: Anything, **kwargs: Anything) -> None:
        """Stop a guest, if it is here."""
        if instance.uuid in self.instances:
            super().power_off(instance, *args, **kwargs)
            self._save()

    def power_on(
        self, context: Anything, instance: Anything, *args: Anything, **kwargs: Anything
    ) -> None:
        """Start a guest that may have come by migration."""
        known = fake.FakeInstance(instance.name, power_state.RUNNING, instance.uuid)
        self.instances.setdefault(instance.uuid, known)
        super().power_on(context, instance, *args, **kwargs)
        self._save()

    def live_migration(self, *args: Anything, **kwargs: Anything) -> None:
        """Move a guest, once nobody holds live migrations."""
        deadline = time.monotonic() + _LONGEST_HOLD_SECONDS
        while self._live_hold.exists() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        super().live_migration(*args, **kwargs)

    def post_live_migration(
        self, context: Anything, instance: Anything, *args: Anything, **kwargs: Anything
    ) -> None:
        """Forget a guest that has left."""
        super().post_live_migration(context, instance, *args, **kwargs)
        self.instances.pop(instance.uuid, None)
        self._save()

    def get_console_output(self, context: Anything, instance: Anything) -> str:
        """Return what a guest shows that has started."""
        return f"{instance.hostname} login: "

    def get_host_uptime(self) -> str:
        """Return the words of ``uptime``, which live migration wants."""
        return " 00:00:00 up 1 day,  0:00,  1 user,  load average: 0.10, 0.10, 0.10"

    def update_provider_tree(
        self, provider_tree: Anything, nodename: str, allocations: Anything = None
    ) -> None:
        """Report traits, and a nested provider per child of the shape."""
        super().update_provider_tree(provider_tree, nodename, allocations=allocations)
        provider_tree.add_traits(nodename, *self._shape["traits"])
        for suffix, held in self._shape["children"].items():
            name = f"{nodename}_{suffix}"
            if not provider_tree.exists(name):
                provider_tree.new_child(name=name, parent=nodename)
            provider_tree.update_inventory(
                name,
                {
                    resource: {
                        "total": total,
                        "reserved": 0,
                        "min_unit": 1,
                        "max_unit": total,
                        "step_size": 1,
                        "allocation_ratio": 1.0,
                    }
                    for resource, total in held.items()
                },
            )
            provider_tree.add_traits(name, "OWNER_NOVA", *self._shape["child_traits"])
