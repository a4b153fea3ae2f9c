"""Folders with a project quota (spec hosts, D.11).

``chattr`` and ``setquota`` of the host set them; without those, or on a file system without project
quotas, only a ``soft`` reservation is made, which bounds nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from headroom_host_agent.provision.built_in.base import BuiltIn, Place
from headroom_host_agent.provision.data import (
    Field,
    amount,
    fields_of,
    is_flag,
    lenient_fields,
    number,
    one_of,
)
from headroom_host_agent.provision.ids import IdError, split_id
from headroom_host_agent.provision.provisioners import HostContext, ProvisionError
from headroom_host_agent.provision.stored import Artifact
from headroom_host_agent.provision.units import Units
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.resources.tree import names_below, read_or_none

KIND = "disk_quota"
FOLDER = "quotas"  # in the data folder
TRASH = ".trash-"
TRASH_SECONDS = 7 * 24 * 3600.0
FIRST_PROJECT = 1_000_000
_TOOL_SECONDS = 30.0
SCHEMA: Mapping[str, Field] = {
    "size_bytes": Field(number(1), "bytes, from 1", is_needed=True),
    "device_class": Field(one_of("ssd", "hdd"), "ssd or hdd"),
    "soft": Field(is_flag, "true or false"),
    "delete_data": Field(is_flag, "true or false"),
}
Run = Callable[[tuple[str, ...]], None]


def run_tool(arguments: tuple[str, ...]) -> None:
    """Run a tool of the host.

    Raises:
        ProvisionError: There is none, it fails or does not end.
    """
    import subprocess  # noqa: PLC0415 - few agents need it

    try:
        subprocess.run(  # noqa: S603 - numbers and our own paths
            arguments, check=True, capture_output=True, timeout=_TOOL_SECONDS
        )
    except subprocess.CalledProcessError as error:
        text = error.stderr.decode("utf-8", "replace").strip()
        raise ProvisionError("no_project_quota", f"{arguments[0]}: {text}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProvisionError("no_project_quota", f"{arguments[0]}: {error}") from None


class DiskQuota(BuiltIn):
    """Makes ``<folder>/<id>``; what is in it at the end is kept for a week under another name."""

    order = 3
    persistent = True
    data_schema = SCHEMA

    def __init__(
        self, place: Place, *, run: Run = run_tool, wall: Callable[[], float] = time.time
    ) -> None:
        super().__init__(place)
        self._run, self._wall = run, wall
        self._root = place.data_dir / FOLDER

    def units(self, reservation: Reservation) -> Units:
        """Return the size, by the kind of disk."""
        data = lenient_fields(reservation)
        size = amount(data, "size_bytes")
        kind = data.get("device_class") or self.device_class()
        return Units(hru=size) if kind == "hdd" else Units(sru=size)

    def check(self, context: HostContext, reservation: Reservation) -> None:
        """Do nothing: whether there are quotas is seen when one is set."""

    def provision(self, context: HostContext, reservation: Reservation) -> Mapping[str, object]:
        """Make the folder and set its quota.

        Raises:
            ProvisionError: The host has no project quotas, and the reservation is not soft.
        """
        data = fields_of(reservation, SCHEMA)
        folder = self._root / context.identity
        told: dict[str, object] = {
            "enforced": self.place.enforce,
            "path": str(folder),
            "size_bytes": amount(data, "size_bytes"),
            "device_class": str(data.get("device_class") or self.device_class()),
        }
        if not self.place.enforce:
            return told
        self._purge()
        context.intend(KIND, context.identity)
        folder.mkdir(parents=True, exist_ok=True)
        project = self._project(context)
        try:
            self._limit(folder, project, amount(data, "size_bytes"))
        except ProvisionError:
            if data.get("soft") is not True:
                raise
            return {**told, "soft": True}
        return {**told, "project": project}

    def verify(self, context: HostContext, reservation: Reservation) -> bool:
        """Return whether the folder is there."""
        return not self.place.enforce or (self._root / context.identity).is_dir()

    def decommission(self, context: HostContext, reservation: Reservation) -> None:
        """Move the folder aside; an empty one goes, as all where that is asked for.

        Raises:
            ProvisionError: It cannot be moved.
        """
        if not self.place.enforce:
            return
        delete = lenient_fields(reservation).get("delete_data") is True
        self._remove(context.identity, delete=delete)
        self._purge()

    def in_use(self, artifact: Artifact) -> bool:
        """Return false: what is in it is kept anyway."""
        return False

    def artifacts(self, context: HostContext) -> Iterable[tuple[str, str]]:
        """Return the folders, but for those moved aside."""
        return [(KIND, name) for name in names_below(self._root) if not name.startswith(TRASH)]

    def remove(self, artifact: Artifact) -> None:
        """Move the folder of a reservation that is gone aside.

        Raises:
            ProvisionError: It cannot be moved.
        """
        if self.place.enforce:
            self._remove(artifact.name, delete=False)

    def device_class(self) -> str:
        """Return what the folder's disk is: ``hdd`` if its queue says that it rotates."""
        below = self._root if self._root.exists() else self.place.data_dir
        try:
            device = below.stat().st_dev
        except OSError:
            return "ssd"
        base = self.place.sysroot / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
        for queue in (base / "queue/rotational", base.resolve().parent / "queue/rotational"):
            told = read_or_none(queue)
            if told is not None:
                return "hdd" if told == "1" else "ssd"
        return "ssd"

    def _project(self, context: HostContext) -> int:
        """Return the number of a folder's project: its own for ever."""
        name = f"project {context.identity}"
        known = context.kept(name)
        if known is None:
            known = context.kept("next project") or str(FIRST_PROJECT)
            context.keep("next project", str(int(known) + 1))
            context.keep(name, known)
        return int(known)

    def _limit(self, folder: Path, project: int, size_bytes: int) -> None:
        blocks = str(-(-size_bytes // 1024))
        self._run(("chattr", "+P", "-p", str(project), str(folder)))
        mount = str(_mount_of(folder))
        self._run(("setquota", "-P", str(project), "0", blocks, "0", "0", mount))

    def _remove(self, name: str, *, delete: bool) -> None:
        try:
            split_id(name)
        except IdError:
            raise ProvisionError("foreign", f"{name!r} is not our naming") from None
        folder = self._root / name
        if not folder.exists():
            return
        try:
            if not any(folder.iterdir()):
                folder.rmdir()
            elif delete:
                _rmtree(folder)
            else:
                os.utime(folder, (self._wall(), self._wall()))  # from then on it is kept
                folder.rename(self._aside(name))
        except OSError as error:
            raise ProvisionError("refused", f"{folder}: {error.strerror}") from None

    def _aside(self, name: str) -> Path:
        """Return a free name for what is kept of a folder: one may have had the same before."""
        aside, number = self._root / f"{TRASH}{name}", 1
        while aside.exists():
            number += 1
            aside = self._root / f"{TRASH}{name}.{number}"
        return aside

    def _purge(self) -> None:
        for name in names_below(self._root):
            path = self._root / name
            if name.startswith(TRASH) and self._wall() - path.stat().st_mtime > TRASH_SECONDS:
                _rmtree(path, ignore_errors=True)


def _rmtree(folder: Path, *, ignore_errors: bool = False) -> None:
    from shutil import rmtree  # noqa: PLC0415 - loads compression libraries; few agents need it

    rmtree(folder, ignore_errors=ignore_errors)


def _mount_of(path: Path) -> Path:
    while not path.is_mount():
        path = path.parent
    return path
