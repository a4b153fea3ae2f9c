"""VMs as libvirt's own test driver has them, and a libvirt that hangs (spec hosts, C.2, D.10)."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from headroom_host_agent.resources.libvirt import LibvirtError, LibvirtLister, _allocation

from config.launcher.places import this_checkout

SYSTEM_PYTHON = "/usr/bin/python3"  # Debian's python3-libvirt is for it alone
SCRIPT = """
import json, sys, threading
from headroom_host_agent.resources.libvirt import LibvirtLister
import libvirt

changed, stop = threading.Event(), threading.Event()
lister = LibvirtLister("test:///default", changed=changed.set)
before = lister.list_instance_allocations()
registered = threading.Event()
real = libvirt.virConnect.domainEventRegisterAny

def register(self, *arguments):
    try:
        return real(self, *arguments)
    finally:
        registered.set()

libvirt.virConnect.domainEventRegisterAny = register
thread = threading.Thread(target=lister.watch, args=(stop,), daemon=True)
thread.start()
assert registered.wait(20)
libvirt.open("test:///default").lookupByName("test").suspend()
assert changed.wait(20), "no event"
stop.set()
thread.join(20)
after = lister.list_instance_allocations()
print(json.dumps([[vm.id, vm.name, vm.vcpus, vm.memory_bytes, vm.state] for vm in before + after]))
"""


def has_libvirt() -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - ours
            [SYSTEM_PYTHON, "-c", "import libvirt"], capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


@pytest.mark.skipif(
    not has_libvirt(), reason="python3-libvirt is missing: lists of libvirt are NOT tested"
)
def test_vms_of_libvirt_are_listed_and_their_changes_heard() -> None:
    done = subprocess.run(  # noqa: S603 - ours
        [SYSTEM_PYTHON, "-c", SCRIPT],
        env={"PYTHONPATH": str(this_checkout().root / "clients/agent")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert before[1:] == ["test", 2, 8 * 1024**3, "Running"]
    assert after == [*before[:4], "Paused"]


class Hanging:
    """A libvirt that does not answer until it may."""

    libvirtError = OSError  # noqa: N815 - the library's name

    def __init__(self) -> None:
        self.may = threading.Event()

    def openReadOnly(self, _: str) -> Any:  # noqa: N802 - the library's name
        self.may.wait()
        return self

    def isAlive(self) -> bool:  # noqa: N802 - the library's name
        return True

    def listAllDomains(self) -> list[Any]:  # noqa: N802 - the library's name
        return []


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    library = Hanging()
    yield library
    library.may.set()


def test_a_libvirt_that_hangs_is_not_waited_for(hanging: Hanging) -> None:
    lister = LibvirtLister("test:///default", library=hanging, call_seconds=0.05)
    with pytest.raises(LibvirtError, match="within"):
        lister.list_instance_allocations()
    with pytest.raises(LibvirtError, match="earlier call"):
        lister.list_instance_allocations()

    hanging.may.set()
    patient = LibvirtLister("test:///default", library=hanging)
    assert patient.list_instance_allocations() == ()


class Deaf(Hanging):
    """A libvirt that is there and never answers who wants to hear of changes."""

    VIR_DOMAIN_EVENT_ID_LIFECYCLE = 0

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def openReadOnly(self, _: str) -> Any:  # noqa: N802 - the library's name
        return self

    def virEventRegisterDefaultImpl(self) -> None:  # noqa: N802 - the library's name
        pass

    def domainEventRegisterAny(self, *_: Any) -> None:  # noqa: N802 - the library's name
        self.asked.set()
        self.may.wait()


def test_who_watches_a_libvirt_that_hangs_ends_when_the_agent_does() -> None:
    library, stop = Deaf(), threading.Event()
    lister = LibvirtLister("test:///default", library=library, call_seconds=0.05)
    watcher = threading.Thread(target=lister.watch, args=(stop,), daemon=True)
    watcher.start()
    assert library.asked.wait(60)
    stop.set()
    watcher.join(60)
    has_ended = not watcher.is_alive()
    library.may.set()
    assert has_ended


class Limited:
    """A VM whose interfaces and disks are limited."""

    def info(self) -> tuple[int, int, int, int, int]:
        return 1, 4096, 4096, 2, 0

    def UUIDString(self) -> str:  # noqa: N802 - the library's name
        return "7b3c0000-0000-4000-8000-000000000001"

    def name(self) -> str:
        return "vm"

    def XMLDesc(self, _flags: int) -> str:  # noqa: N802 - the library's name
        return """<domain><devices>
            <interface><bandwidth><inbound average='1000' peak='9'/><outbound average='250'/>
            </bandwidth></interface>
            <interface><bandwidth><inbound average='24'/></bandwidth></interface>
            <interface/>
            <disk><iotune><total_bytes_sec>500</total_bytes_sec></iotune></disk>
            <disk><iotune><read_bytes_sec>30</read_bytes_sec><write_bytes_sec>4</write_bytes_sec>
            </iotune></disk>
            <disk><iotune><total_iops_sec>77</total_iops_sec></iotune></disk>
        </devices></domain>"""


def test_limits_of_interfaces_and_disks_are_what_a_vm_takes() -> None:
    vm = _allocation(Limited())
    assert (vm.network_download_bps, vm.network_upload_bps) == (1_024_000, 250_000)
    assert vm.disk_io_bps == 534
