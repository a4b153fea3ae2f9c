"""Virtual GPUs, as mediated devices whose names are made of the reservation (spec hosts, D.11)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from headroom_host_agent.provision.built_in.base import BuiltIn
from headroom_host_agent.provision.data import Field, fields_of, is_name
from headroom_host_agent.provision.provisioners import HostContext, ProvisionError
from headroom_host_agent.provision.stored import Artifact
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.resources.facts import ResourceError
from headroom_host_agent.resources.gpu.assignment import create_mdev, destroy_mdev, is_held
from headroom_host_agent.resources.gpu.functions import (
    MDEV_DEVICES,
    mdev_functions,
    mdev_paths,
    mdev_types,
)
from headroom_host_agent.resources.gpu.health import read_quarantined

KIND = "vgpu"
GPU_HEALTH = "gpu-health.json"  # in the data folder
SCHEMA: Mapping[str, Field] = {"profile": Field(is_name, "a profile's name", is_needed=True)}
_SPACE = uuid.UUID("7b0a9f8e-6f3c-4f0e-9a51-0d5b2c7f4e11")


class Vgpu(BuiltIn):
    """Makes one device of a profile. The same reservation has the same device at each try."""

    order = 2
    data_schema = SCHEMA

    def check(self, context: HostContext, reservation: Reservation) -> None:
        """Look whether the profile is known and a function free, unless it is made already.

        Raises:
            ProvisionError: It is not.
        """
        profile = fields_of(reservation, SCHEMA)["profile"]
        if device_of(context.identity) in mdev_paths(self.place.sysroot):
            return
        functions = mdev_functions(self.place.sysroot)
        kinds = [kind.id for kind in mdev_types(functions) if kind.name == profile]
        if not kinds:
            raise ProvisionError("no_profile", f"no profile {profile!r} on this host")
        bad = self._quarantined()
        if not any(
            not one.used and one.address not in bad and one.offers.get(kinds[0], 0) >= 1
            for one in functions
        ):
            raise ProvisionError("no_free_function", f"no free function offers {profile!r}")

    def provision(self, context: HostContext, reservation: Reservation) -> Mapping[str, object]:
        """Make the device.

        Raises:
            ProvisionError: No function is free, or the kernel refuses.
        """
        profile = str(fields_of(reservation, SCHEMA)["profile"])
        device = device_of(context.identity)
        told = {"enforced": self.place.enforce, "mdev": device, "profile": profile}
        if self.place.enforce and device not in mdev_paths(self.place.sysroot):
            context.intend(KIND, device)
            try:
                create_mdev(
                    self.place.sysroot, profile, quarantined=self._quarantined(), new_uuid=device
                )
            except ResourceError as error:
                raise ProvisionError(error.code, str(error)) from None
        return told

    def verify(self, context: HostContext, reservation: Reservation) -> bool:
        """Return whether the device is there."""
        is_there = device_of(context.identity) in mdev_paths(self.place.sysroot)
        return is_there or not self.place.enforce

    def decommission(self, context: HostContext, reservation: Reservation) -> None:
        """Remove the device.

        Raises:
            ProvisionError: It is in use.
        """
        if self.place.enforce:
            self._destroy(device_of(context.identity))

    def in_use(self, artifact: Artifact) -> bool:
        """Return whether a driver or a process holds the device."""
        path = self._path(artifact.name)
        return path is not None and is_held(self.place.sysroot, path)

    def artifacts(self, context: HostContext) -> Iterable[tuple[str, str]]:
        """Return all mediated devices of the host."""
        return [(KIND, name) for name in mdev_paths(self.place.sysroot)]

    def remove(self, artifact: Artifact) -> None:
        """Remove a device whose reservation is gone.

        Raises:
            ProvisionError: It is in use, or the kernel refuses.
        """
        if self.place.enforce:
            self._destroy(artifact.name)

    def _destroy(self, device: str) -> None:
        path = self._path(device)
        if path is None:
            return
        if is_held(self.place.sysroot, path):
            raise ProvisionError("in_use", f"the device {device} is busy")
        try:
            destroy_mdev(self.place.sysroot, device)
        except ResourceError as error:
            raise ProvisionError(error.code, str(error)) from None

    def _path(self, device: str) -> Path | None:
        path = self.place.sysroot / MDEV_DEVICES / device
        return path.resolve() if path.exists() else None

    def _quarantined(self) -> frozenset[str]:
        return read_quarantined(self.place.data_dir / GPU_HEALTH)[0]


def device_of(identity: str) -> str:
    """Return the name of a reservation's device."""
    return str(uuid.uuid5(_SPACE, identity))
