"""What makes reservations real on a host (spec hosts, B.7, D.11)."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from headroom_host_agent.plugins import entry_points_of
from headroom_host_agent.provision.stored import FILLED, Artifact
from headroom_host_agent.provision.units import Units
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.resources.admission import AllocationRequest, is_unlimited
from headroom_host_agent.resources.facts import ResourceError, ResourceType
from headroom_host_agent.resources.gpu.status import GpuStatus
from headroom_host_agent.resources.manager import Manager
from headroom_host_agent.resources.status import ResourceStatus

if TYPE_CHECKING:
    from headroom_host_agent.provision.data import Field

log = logging.getLogger(__name__)
ENTRY_POINTS = "headroom.host_provisioners"
_AMOUNTS: Mapping[str, str] = {
    "cpu": "vcpus",
    "memory": "memory_bytes",
    "disk": "disk_bytes",
    "network": "network_download_bps",
    "disk_io": "disk_io_bps",
    "gpu": "needs_gpu",
}


class ProvisionError(Exception):
    """A reservation cannot be made real; ``code`` is for programs, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class HostContext:
    """What a provisioner may use.

    Attributes:
        identity: The id that artefacts carry.
        taken: What other reservations of the host take, by the names of resources.
        intend: Called with kind and name before something is made, so that a kill leaves a trace.
        others: The other reservations that are on the host, or half made.
        keep: Called with name and value, which outlive the agent; ``kept`` returns the value.
        is_made: Whether the server or the store has it as made already, so that what is there now
            is its own: only what is missing is to be made.
        cancelled: Set when the job has taken too long; the provisioner then returns or raises.
    """

    manager: Manager
    data_dir: Path
    identity: str
    taken: Mapping[str, int]
    intend: Callable[[str, str], None]
    others: tuple[Reservation, ...] = ()
    keep: Callable[[str, str], None] = lambda *_: None
    kept: Callable[[str], str | None] = lambda _: None
    is_made: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)


class Provisioner(Protocol):
    """Makes reservations of one type real. Every call may be repeated and says the same then.

    Attributes:
        order: Place in a page; deletions go the other way.
        persistent: Whether what it makes outlives a boot of the host.
        parallel: Whether jobs of different artefacts may run beside each other.
    """

    order: int
    persistent: bool
    parallel: bool

    @property
    def data_schema(self) -> Mapping[str, Field] | None:
        """Field of the data -> what is allowed; None, or left out, for anything.

        What does not keep to it is refused before ``check``.
        """

    def units(self, reservation: Reservation) -> Units:
        """Return what a reservation takes."""

    def check(self, context: HostContext, reservation: Reservation) -> None:
        """Look whether it can be made.

        Raises:
            ProvisionError: It cannot.
        """

    def provision(
        self, context: HostContext, reservation: Reservation
    ) -> Mapping[str, object] | None:
        """Make it and return the result's data, without floats.

        Raises:
            ProvisionError: It failed; what is half made is decommissioned next.
        """

    def verify(self, context: HostContext, reservation: Reservation) -> bool:
        """Return whether it is as it was made."""

    def decommission(self, context: HostContext, reservation: Reservation) -> None:
        """Remove it; what is missing is success.

        Raises:
            ProvisionError: It is in use, or cannot be removed.
        """

    def artifacts(self, context: HostContext) -> Iterable[tuple[str, str]]:
        """Return (kind, name) of all that is there, of whatever origin."""

    def in_use(self, artifact: Artifact) -> bool:
        """Return whether something holds an artefact, so that it must stay."""

    def remove(self, artifact: Artifact) -> None:
        """Remove an artefact whose reservation is gone; a missing one is success.

        Raises:
            ProvisionError: It cannot be removed.
        """


class Accounting:
    """Bookkeeping alone: a reservation is admitted if the host has what it takes."""

    order = 0
    persistent = True
    parallel = False
    data_schema: Mapping[str, Field] | None = None

    def units(self, reservation: Reservation) -> Units:
        """Return CPUs and memory."""
        taken = reservation.resources
        return Units(cru=taken.get("cpu", 0), mru=taken.get("memory", 0))

    def check(self, context: HostContext, reservation: Reservation) -> None:
        """Admit it beside what VMs and what other reservations take.

        VMs fill reservations, so the two are not added up: what of it VMs had filled when it was
        asked for counts with them alone, and one that was admitted before is not held against the
        VMs that may fill it, whatever size it gets.

        Raises:
            ProvisionError: The host has not what it takes, or does not know a resource.
        """
        manager = context.manager
        try:
            request = request_of(_unfilled(reservation))
            if not context.is_made:
                manager.reserve_allocation(context.identity, request)
            for name, asked in reservation.resources.items():
                if name == ResourceType.GPU:
                    _check_gpus_beside(manager.get_gpu_status(), asked, context.taken)
                else:
                    _check_beside(manager.get_status(ResourceType(name)), asked, context.taken)
        except ResourceError as error:
            raise ProvisionError(error.code, str(error)) from None

    def provision(
        self, context: HostContext, reservation: Reservation
    ) -> Mapping[str, object] | None:
        """Make nothing; the engine keeps it."""
        context.manager.finish_allocation(context.identity)
        return None

    def verify(self, context: HostContext, reservation: Reservation) -> bool:
        """Return true: nothing can be missing."""
        return True

    def decommission(self, context: HostContext, reservation: Reservation) -> None:
        """End its admission if that was still under way."""
        context.manager.finish_allocation(context.identity)

    def in_use(self, artifact: Artifact) -> bool:
        """Return false: nothing is ever made."""
        return False

    def artifacts(self, context: HostContext) -> Iterable[tuple[str, str]]:
        """Return nothing."""
        return ()

    def remove(self, artifact: Artifact) -> None:
        """Do nothing."""


def _unfilled(reservation: Reservation) -> dict[str, int]:
    """Return what of a reservation no VM had filled when it was asked for."""
    data = json.loads(reservation.data or b"null")
    told = data.get(FILLED) if isinstance(data, dict) else None
    filled = {
        name: amount
        for name, amount in (told.items() if isinstance(told, dict) else ())
        if isinstance(amount, int) and amount > 0
    }
    return {
        name: max(0, asked - filled.get(name, 0)) for name, asked in reservation.resources.items()
    }


def _check_gpus_beside(status: GpuStatus | None, asked: int, taken: Mapping[str, int]) -> None:
    limit = 0 if status is None else status.total_slots
    reserved = taken.get(ResourceType.GPU.value, 0)
    if asked and reserved + asked > limit:
        raise ProvisionError(
            "insufficient_capacity", f"gpu: requested {asked}, reserved {reserved}, limit {limit}"
        )


def _check_beside(status: ResourceStatus, asked: int, taken: Mapping[str, int]) -> None:
    reserved = taken.get(status.type.value, 0)
    if asked and reserved + asked > status.effective_limit and not is_unlimited(status):
        raise ProvisionError(
            "insufficient_capacity",
            f"{status.type}: requested {asked}, "
            f"reserved {reserved}, limit {status.effective_limit}",
        )


BUILT_IN: Mapping[str, Provisioner] = MappingProxyType({"accounting": Accounting()})


def request_of(resources: Mapping[str, int]) -> AllocationRequest:
    """Return the request of a reservation's resources.

    Raises:
        ProvisionError: A resource is unknown.
    """
    unknown = sorted(set(resources) - set(_AMOUNTS))
    if unknown:
        raise ProvisionError("unknown_resource", f"unknown resources: {', '.join(unknown)}")
    amounts = {_AMOUNTS[name]: amount for name, amount in resources.items() if name != "gpu"}
    return AllocationRequest(**amounts, needs_gpu=resources.get("gpu", 0) > 0)


def load_provisioners(
    enabled: tuple[str, ...], built_in: Mapping[str, Provisioner] = BUILT_IN
) -> tuple[dict[str, Provisioner], dict[str, str]]:
    """Return the enabled provisioners by type, and why others of them cannot be had.

    One that fails to load leaves its type unsupported and stops nothing.
    """
    offered = {entry.name: entry for entry in entry_points_of(ENTRY_POINTS)}
    found: dict[str, Provisioner] = {}
    failed: dict[str, str] = {}
    for name in enabled:
        if name in built_in:
            found[name] = built_in[name]
        elif name not in offered:
            failed[name] = "no installed package offers it"
        else:
            try:
                found[name] = offered[name].load()()
            except Exception as error:
                log.exception("the provisioner %s cannot be loaded", name)
                failed[name] = f"{type(error).__name__}: {error}"
    return found, failed
