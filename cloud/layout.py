"""What the small cloud consists of: directories, ports, hosts, flavors, projects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ADDRESS: Final = "127.0.0.1"
REGION: Final = "RegionOne"
PASSWORD: Final = "mini"  # noqa: S105 - of a cloud that listens on this machine only
ZONES: Final = ("az-a", "az-b", "az-c")
SERVICE_USERS: Final = ("nova", "glance", "neutron", "headroom")
PROJECTS: Final[Mapping[str, tuple[str, ...]]] = {
    "acme": ("acme-prod", "acme-dev"),
    "globex": ("globex-core", "globex-lab"),
}
_OFFSETS: Final = {
    "keystone": 0,
    "headroom": 1,
    "glance": 2,
    "nova": 3,
    "neutron": 4,
    "mysql": 306,
    "epmd": 369,
    "rabbit": 672,
    "rabbit_dist": 673,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything of one small cloud is.

    Attributes:
        root: The checkout.
        home: Directory that holds all of the cloud's state.
        base_port: Keystone's port; the others are at fixed distances above it.
        host_count: Compute hosts.
    """

    root: Path
    home: Path
    base_port: int
    host_count: int

    @property
    def venv(self) -> Path:
        """Environment of the OpenStack services."""
        return self.home / "venv"

    @property
    def etc(self) -> Path:
        """Configuration files."""
        return self.home / "etc"

    @property
    def state(self) -> Path:
        """Databases, queues, keys and guests: gone at each start."""
        return self.home / "state"

    @property
    def logs(self) -> Path:
        """A log per process."""
        return self.home / "log"

    @property
    def external_url_file(self) -> Path:
        """File that holds the address Nova's scheduler asks; absent when it asks nobody."""
        return self.state / "external-url"

    @property
    def live_hold_file(self) -> Path:
        """File that keeps live migrations from ending while it is there."""
        return self.state / "computes" / "hold-live-migrations"

    def port(self, service: str) -> int:
        """Return the port of a service."""
        return self.base_port + _OFFSETS[service]

    def url(self, service: str) -> str:
        """Return the address of a service, without a path."""
        return f"http://{ADDRESS}:{self.port(service)}"

    @property
    def ports(self) -> Mapping[str, int]:
        """Every port that is listened on, by service."""
        return {service: self.port(service) for service in _OFFSETS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kind of hardware.

    Attributes:
        children: Inventories of nested providers, by the suffix of their names.
    """

    vcpus: int
    memory_mib: int
    disk_gib: int
    vcpu_ratio: float = 1.0
    reserved_memory_mib: int = 0
    reserved_vcpus: int = 0
    traits: tuple[str, ...] = ()
    children: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    child_traits: tuple[str, ...] = ()


def _general(*traits: str) -> Shape:
    return Shape(
        vcpus=64,
        memory_mib=524288,
        disk_gib=4000,
        vcpu_ratio=2.0,
        reserved_memory_mib=16384,
        traits=("CUSTOM_GENERAL_HOST", *traits),
    )


SHAPES: Final[Mapping[str, Shape]] = {
    "general": _general(),
    "hana": Shape(
        vcpus=224,
        memory_mib=3145728,
        disk_gib=16000,
        reserved_memory_mib=65536,
        reserved_vcpus=8,
        traits=("CUSTOM_HANA_EXCLUSIVE_HOST",),
    ),
    "nvme": _general("CUSTOM_NVME"),
    "gpu": Shape(
        vcpus=96,
        memory_mib=1048576,
        disk_gib=8000,
        reserved_memory_mib=32768,
        traits=("CUSTOM_GPU_HOST",),
        children={"gpu0": {"VGPU": 8}, "gpu1": {"VGPU": 8}},
        child_traits=("CUSTOM_GPU_L40",),
    ),
}
SHAPE_ORDER: Final = ("general", "hana", "nvme", "gpu", "general", "hana")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeHost:
    """A compute host: its name, zone and kind of hardware."""

    name: str
    zone: str
    shape_name: str

    @property
    def shape(self) -> Shape:
        """The hardware."""
        return SHAPES[self.shape_name]


def compute_hosts(count: int) -> tuple[ComputeHost, ...]:
    """Return hosts, dealt to the zones in turn; each zone gets its shapes in the same order."""
    return tuple(
        ComputeHost(
            name=f"node{index + 1:03d}-{ZONES[index % len(ZONES)]}",
            zone=ZONES[index % len(ZONES)],
            shape_name=SHAPE_ORDER[index // len(ZONES) % len(SHAPE_ORDER)],
        )
        for index in range(count)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorPlan:
    """A flavor; ``weight`` says how often the exercise boots it."""

    name: str
    vcpus: int
    memory_mib: int
    disk_gib: int
    extra_specs: Mapping[str, str]
    ephemeral_gib: int = 0
    swap_mib: int = 0
    weight: int = 0

    @property
    def resources(self) -> Mapping[str, int]:
        """What Nova claims for one server on the host itself, zeros left out."""
        disk = self.disk_gib + self.ephemeral_gib + -(-self.swap_mib // 1024)
        wanted = {"VCPU": self.vcpus, "MEMORY_MB": self.memory_mib, "DISK_GB": disk}
        wanted |= {
            name.removeprefix("resources:"): int(text)
            for name, text in self.extra_specs.items()
            if name.startswith("resources:")
        }
        return {name: amount for name, amount in wanted.items() if amount}


_KVM: Final = {"capabilities:hypervisor_type": "QEMU"}
_GENERAL: Final = {
    **_KVM,
    "trait:CUSTOM_HANA_EXCLUSIVE_HOST": "forbidden",
    "trait:CUSTOM_GPU_HOST": "forbidden",
    "quota:hw_version": "general",
}
_HANA: Final = {
    **_KVM,
    "trait:CUSTOM_HANA_EXCLUSIVE_HOST": "required",
    "quota:hw_version": "hana",
}
_GPU: Final = {**_KVM, "trait:CUSTOM_GPU_HOST": "required", "quota:hw_version": "gpu"}


def _flavor(
    name: str, size: tuple[int, int, int], specs: Mapping[str, str], weight: int
) -> FlavorPlan:
    vcpus, memory_mib, disk_gib = size
    return FlavorPlan(
        name=name,
        vcpus=vcpus,
        memory_mib=memory_mib,
        disk_gib=disk_gib,
        extra_specs=specs,
        weight=weight,
    )


FLAVORS: Final = (
    _flavor("g_c2_m8", (2, 8192, 20), _GENERAL, 8),
    _flavor("g_c2_m8_nvme", (2, 8192, 20), {**_GENERAL, "trait:CUSTOM_NVME": "required"}, 3),
    _flavor("g_c4_m16", (4, 16384, 40), _GENERAL, 8),
    _flavor("g_c8_m32", (8, 32768, 64), _GENERAL, 6),
    FlavorPlan(
        name="g_c1_m2_swap",
        vcpus=1,
        memory_mib=2048,
        disk_gib=10,
        ephemeral_gib=5,
        swap_mib=1536,
        extra_specs=_GENERAL,
        weight=3,
    ),
    _flavor("g_c2_m4_nodisk", (2, 4096, 0), _GENERAL, 3),
    _flavor("hana_c24_m365", (24, 373760, 100), _HANA, 4),
    _flavor("hana_c48_m730", (48, 747520, 200), _HANA, 2),
    _flavor("gpu_c8_m64_v1", (8, 65536, 100), {**_GPU, "resources:VGPU": "1"}, 2),
    _flavor("huge_c4096", (4096, 8388608, 10), _KVM, 0),
)
"""``huge_c4096`` fits nowhere."""


def openstack_variables(layout: Layout) -> dict[str, str]:
    """Return the OS_* variables of the administrator."""
    return {
        "OS_AUTH_URL": f"{layout.url('keystone')}/v3",
        "OS_USERNAME": "admin",
        "OS_PASSWORD": PASSWORD,
        "OS_PROJECT_NAME": "admin",
        "OS_USER_DOMAIN_NAME": "Default",
        "OS_PROJECT_DOMAIN_NAME": "Default",
        "OS_REGION_NAME": REGION,
        "OS_IDENTITY_API_VERSION": "3",
        "OS_INTERFACE": "public",
    }


def headroom_variables(layout: Layout) -> dict[str, str]:
    """Return the settings of Headroom as Placement and external scheduler of this cloud.

    All computes come at once with tokens that are new to it, and Keystone shares the processors
    with some thirty processes: Headroom waits longer for it, and with more requests, than it would
    elsewhere. A token that is looked up anew amid a burst of boots would cost those that wait.
    """
    return {
        "HEADROOM_AUTH": "keystone",
        "HEADROOM_KEYSTONE__AUTH_URL": f"{layout.url('keystone')}/v3",
        "HEADROOM_KEYSTONE__USERNAME": "headroom",
        "HEADROOM_KEYSTONE__PASSWORD": PASSWORD,
        "HEADROOM_KEYSTONE__PROJECT_NAME": "service",
        "HEADROOM_KEYSTONE__REGION_NAME": REGION,
        "HEADROOM_KEYSTONE__TIMEOUT_SECONDS": "60",
        "HEADROOM_KEYSTONE__MOST_WAITING": "15",
        "HEADROOM_KEYSTONE__TOKEN_CACHE_SECONDS": "3600",
        "GRANIAN_BLOCKING_THREADS": "16",
        "HEADROOM_ALLOCATION_SOURCE": "placement",
        "HEADROOM_PLACEMENT__HOST_CAPACITY": "true",
        "HEADROOM_SYNC__ENABLED": "false",  # this cloud has no Limes
        "HEADROOM_SECURE_COOKIES": "false",
        "HEADROOM_LISTEN_ADDRESS": ADDRESS,
        "GRANIAN_PORT": str(layout.port("headroom")),
    }
