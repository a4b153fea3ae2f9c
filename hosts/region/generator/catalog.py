"""What generated regions are made of: hardware generations, flavors, groups, names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

GENERAL: Final = "general"
HANA: Final = "hana"
GPU: Final = "gpu"
GENERAL_TRAIT: Final = "CUSTOM_GENERAL_HOST"
HANA_TRAIT: Final = "CUSTOM_HANA_EXCLUSIVE_HOST"
GPU_TRAIT: Final = "CUSTOM_GPU_HOST"
GPU_MODEL_TRAIT: Final = "CUSTOM_GPU_L40"
VGPUS_PER_CARD: Final = 8
CARDS_PER_HOST: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A hardware generation.

    Attributes:
        name: Short name.
        shape: What it is for: ``general``, ``hana`` or ``gpu``.
        share: Relative number of hosts.
        vcpus: Installed threads.
        memory_gib: Installed memory.
        disk_gib: Installed local disk.
        reserved_vcpus: Kept for the host.
        reserved_gib: Memory kept for the host.
        vcpus_ratio: CPU overcommit in tenths (20 is 2.0).
        traits: Its own traits.
    """

    name: str
    shape: str
    share: int
    vcpus: int
    memory_gib: int
    disk_gib: int
    reserved_vcpus: int
    reserved_gib: int
    vcpus_ratio: int
    traits: tuple[str, ...]

    @property
    def usable_vcpus(self) -> int:
        """VCPUs that may be promised."""
        return (self.vcpus - self.reserved_vcpus) * self.vcpus_ratio // 10

    @property
    def usable_gib(self) -> int:
        """Memory that may be promised, in GiB."""
        return self.memory_gib - self.reserved_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class FlavorPlan:
    """A flavor of the region."""

    name: str
    group: str
    shape: str
    vcpus: int
    memory_gib: int
    disk_gib: int
    vgpus: int = 0

    @property
    def extra_specs(self) -> dict[str, str]:
        """Extra specs as Nova shows them."""
        specs = {"capabilities:hypervisor_type": "QEMU", "quota:hw_version": self.group}
        if self.shape == GENERAL:
            specs |= {f"trait:{GPU_TRAIT}": "forbidden", f"trait:{HANA_TRAIT}": "forbidden"}
        elif self.shape == HANA:
            specs |= {f"trait:{HANA_TRAIT}": "required", "hw:mem_page_size": "1GB"}
        else:
            specs |= {f"trait:{GPU_TRAIT}": "required", "resources:VGPU": str(self.vgpus)}
        return specs


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """A flavor group: its unit, what it handles, and its flavors.

    Attributes:
        name: Name, the value of ``quota:hw_version``.
        shape: Shape of the hosts it runs on; groups of one shape share hosts.
        ram_unit_gib: GiB per declared unit.
        handles_commitments: Memory can be committed.
        handles_cores: Cores can be committed.
        flavors: Its flavors.
    """

    name: str
    shape: str
    ram_unit_gib: int
    handles_commitments: bool
    handles_cores: bool
    flavors: tuple[FlavorPlan, ...] = field(default=())

    @property
    def smallest_gib(self) -> int:
        """Memory of its smallest flavor."""
        return min(flavor.memory_gib for flavor in self.flavors)


def _flavors(
    group: str, shape: str, prefix: str, sizes: tuple[tuple[int, int], ...], *, vgpus: int = 0
) -> tuple[FlavorPlan, ...]:
    return tuple(
        FlavorPlan(
            name=f"{prefix}_c{vcpus}_m{memory_gib}",
            group=group,
            shape=shape,
            vcpus=vcpus,
            memory_gib=memory_gib,
            disk_gib=min(200, 20 + memory_gib // 2),
            vgpus=vgpus * vcpus // 8,
        )
        for vcpus, memory_gib in sizes
    )


HARDWARE: Final = (
    Hardware(
        name="gp1",
        shape=GENERAL,
        share=25,
        vcpus=128,
        memory_gib=768,
        disk_gib=6000,
        reserved_vcpus=0,
        reserved_gib=32,
        vcpus_ratio=20,
        traits=(GENERAL_TRAIT, "HW_CPU_X86_AVX2"),
    ),
    Hardware(
        name="gp2",
        shape=GENERAL,
        share=30,
        vcpus=192,
        memory_gib=1024,
        disk_gib=8000,
        reserved_vcpus=0,
        reserved_gib=32,
        vcpus_ratio=20,
        traits=(GENERAL_TRAIT, "HW_CPU_X86_AVX2", "HW_CPU_X86_AVX512F"),
    ),
    Hardware(
        name="gp3",
        shape=GENERAL,
        share=20,
        vcpus=256,
        memory_gib=2048,
        disk_gib=12000,
        reserved_vcpus=0,
        reserved_gib=64,
        vcpus_ratio=20,
        traits=(GENERAL_TRAIT, "HW_CPU_X86_AVX2", "HW_CPU_X86_AVX512F", "HW_CPU_X86_AVX512VNNI"),
    ),
    Hardware(
        name="hana1",
        shape=HANA,
        share=12,
        vcpus=224,
        memory_gib=3072,
        disk_gib=16000,
        reserved_vcpus=8,
        reserved_gib=64,
        vcpus_ratio=10,
        traits=(HANA_TRAIT, "HW_CPU_X86_AVX2"),
    ),
    Hardware(
        name="hana2",
        shape=HANA,
        share=8,
        vcpus=448,
        memory_gib=6144,
        disk_gib=24000,
        reserved_vcpus=16,
        reserved_gib=128,
        vcpus_ratio=10,
        traits=(HANA_TRAIT, "HW_CPU_X86_AVX2", "HW_CPU_X86_AVX512F"),
    ),
    Hardware(
        name="gpu1",
        shape=GPU,
        share=5,
        vcpus=96,
        memory_gib=1024,
        disk_gib=8000,
        reserved_vcpus=0,
        reserved_gib=32,
        vcpus_ratio=10,
        traits=(GPU_TRAIT, "HW_CPU_X86_AVX2"),
    ),
)
GROUPS: Final = (
    GroupPlan(
        name="general_v1",
        shape=GENERAL,
        ram_unit_gib=1,
        handles_commitments=True,
        handles_cores=True,
        flavors=_flavors(
            "general_v1",
            GENERAL,
            "g",
            ((2, 4), (2, 8), (4, 16), (8, 32), (8, 64), (16, 64), (16, 128), (32, 256)),
        ),
    ),
    GroupPlan(
        name="general_v2",
        shape=GENERAL,
        ram_unit_gib=8,
        handles_commitments=True,
        handles_cores=False,
        flavors=_flavors(
            "general_v2", GENERAL, "x", ((2, 8), (4, 16), (8, 32), (16, 64), (32, 128))
        ),
    ),
    GroupPlan(
        name="hana_v1",
        shape=HANA,
        ram_unit_gib=256,
        handles_commitments=True,
        handles_cores=False,
        flavors=_flavors("hana_v1", HANA, "hana", ((16, 256), (32, 512), (64, 1024), (128, 2048))),
    ),
    GroupPlan(
        name="hana_v2",
        shape=HANA,
        ram_unit_gib=1,
        handles_commitments=True,
        handles_cores=False,
        flavors=_flavors("hana_v2", HANA, "hana2", ((30, 480), (48, 960), (120, 1920))),
    ),
    GroupPlan(
        name="gpu_v1",
        shape=GPU,
        ram_unit_gib=64,
        handles_commitments=False,
        handles_cores=False,
        flavors=_flavors("gpu_v1", GPU, "gpu", ((8, 64), (16, 128)), vgpus=1),
    ),
)
FLAVORS_BY_SHAPE: Final = {
    shape: tuple(
        sorted(
            (flavor for group in GROUPS if group.shape == shape for flavor in group.flavors),
            key=lambda flavor: (flavor.memory_gib, flavor.vcpus, flavor.name),
        )
    )
    for shape in (GENERAL, HANA, GPU)
}
DOMAIN_NAMES: Final = (
    "alpine-steel",
    "cobalt-pharma",
    "harbour-logistics",
    "juniper-retail",
    "lumen-energy",
    "meridian-bank",
    "orchard-foods",
    "atlas-rail",
)
PROJECT_PURPOSES: Final = (
    "erp",
    "hana-prd",
    "crm",
    "analytics",
    "web",
    "hana-qas",
    "dev",
    "backup",
    "integration",
    "payroll",
    "warehouse",
    "sandbox",
)
ROLES: Final = ("app", "db", "web", "batch", "cache", "ci", "bw", "s4")
IMAGE_NAMES: Final = (
    ("sles-15-sp6-sap", "sles15_64Guest"),
    ("ubuntu-24.04", "ubuntu64Guest"),
    ("rhel-9.4", "rhel9_64Guest"),
    ("windows-server-2022", "windows2019srvNext_64Guest"),
)
DISABLED_REASONS: Final = ("firmware update", "memory module replacement", "rack move planned")
