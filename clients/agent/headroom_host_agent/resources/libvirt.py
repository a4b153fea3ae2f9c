"""VMs as libvirt lists them; reads and never writes (spec hosts, C.2, D.10).

libvirt's calls have no end of their own: each runs in a thread that is waited for so long, and
while one hangs no other is made. Needs ``libvirt-python``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from headroom_host_agent.resources.facts import InstanceAllocation

log = logging.getLogger(__name__)
CALL_SECONDS = 10.0
_AGAIN_SECONDS = 30.0
_KIB = 1024
_STATES = {1: "Running", 2: "Running", 3: "Paused", 4: "Shutdown", 5: "Stopped", 6: "Unknown"}
_SUSPENDED = 7
_T = TypeVar("_T")


class LibvirtError(OSError):
    """libvirt did not answer, or not in time."""


class LibvirtLister:
    """Lists all VMs that are defined, running or not.

    Args:
        uri: Such as ``qemu:///system``.
        changed: Called when a VM begins, ends or changes otherwise.
    """

    def __init__(
        self,
        uri: str,
        *,
        changed: Callable[[], None] = lambda: None,
        library: Any = None,  # Any: the module has no types
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._uri, self._call_seconds = uri, call_seconds
        self.changed = changed
        self._library = library if library is not None else _library()
        self._connection: Any = None  # Any: as the module
        self._busy = threading.Lock()

    def list_instance_allocations(self) -> tuple[InstanceAllocation, ...]:
        """Return all VMs.

        Raises:
            LibvirtError: They cannot be listed now.
        """
        return self._within(self._list)

    def watch(self, stop: threading.Event) -> None:
        """Call ``changed`` on events until ``stop`` is set; without libvirt try again later."""
        self._library.virEventRegisterDefaultImpl()
        while not stop.is_set():
            try:
                self._watch(stop)
            except (LibvirtError, self._library.libvirtError) as error:
                log.warning("changes of VMs are not heard of: %s", error)
                stop.wait(_AGAIN_SECONDS)

    def _watch(self, stop: threading.Event) -> None:
        library = self._library
        connection = self._within(lambda: library.openReadOnly(self._uri))
        self._within(
            lambda: connection.domainEventRegisterAny(
                None, library.VIR_DOMAIN_EVENT_ID_LIFECYCLE, lambda *_: self.changed(), None
            )
        )
        ticks = library.virEventAddTimeout(1000, lambda *_: None, None)
        try:
            while not stop.is_set() and connection.isAlive():
                library.virEventRunDefaultImpl()
        finally:
            library.virEventRemoveTimeout(ticks)

    def _within(self, call: Callable[[], _T]) -> _T:
        if not self._busy.acquire(timeout=self._call_seconds):
            raise LibvirtError("libvirt has not answered an earlier call")
        answers: list[_T] = []
        errors: list[Exception] = []

        def run() -> None:
            try:
                answers.append(call())
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
            finally:
                self._busy.release()

        thread = threading.Thread(target=run, name="libvirt", daemon=True)
        thread.start()
        thread.join(self._call_seconds)
        if answers:
            return answers[0]
        if errors:
            raise LibvirtError(f"libvirt: {errors[0]}") from errors[0]
        raise LibvirtError(f"libvirt does not answer within {self._call_seconds:g} s")

    def _list(self) -> tuple[InstanceAllocation, ...]:
        if self._connection is None or not self._connection.isAlive():
            self._connection = self._library.openReadOnly(self._uri)
        found = []
        for domain in self._connection.listAllDomains():
            try:
                found.append(_allocation(domain))
            except self._library.libvirtError as error:
                if error.get_error_code() != self._library.VIR_ERR_NO_DOMAIN:
                    raise
        return tuple(found)


def _allocation(domain: Any) -> InstanceAllocation:  # Any: as the module
    from xml.etree import ElementTree as ET  # noqa: PLC0415 - few agents need it

    state, most_kib, _, vcpus, _ = domain.info()
    document = ET.fromstring(domain.XMLDesc(0))  # noqa: S314 - of libvirt on this host
    pinned = document.findall("./cputune/vcpupin")
    return InstanceAllocation(
        id=domain.UUIDString(),
        name=domain.name(),
        vcpus=len(pinned) or vcpus,
        memory_bytes=most_kib * _KIB,
        state="Standby" if state == _SUSPENDED else _STATES.get(state, "Unknown"),
        network_download_bps=_network(document, "inbound"),
        network_upload_bps=_network(document, "outbound"),
        disk_io_bps=_disk_io(document),
    )


def _network(document: Any, direction: str) -> int:  # Any: an element
    """Return what the interfaces of a VM are limited to; libvirt's unit is 1000 bytes a second."""
    found = document.findall(f"./devices/interface/bandwidth/{direction}")
    return 1000 * sum(_number(one.get("average")) for one in found)


def _disk_io(document: Any) -> int:  # Any: an element
    """Return what the disks of a VM are limited to, in bytes per second."""
    total = 0
    for limits in document.findall("./devices/disk/iotune"):
        both = _number(limits.findtext("total_bytes_sec"))
        apart = (limits.findtext(f"{what}_bytes_sec") for what in ("read", "write"))
        total += both or sum(_number(text) for text in apart)
    return total


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


def _library() -> Any:  # Any: the module has no types
    try:
        libvirt: Any = import_module("libvirt")
    except ImportError:
        raise LibvirtError("libvirt-python is not installed") from None
    libvirt.registerErrorHandler(lambda *_: None, None)  # errors are raised
    return libvirt
