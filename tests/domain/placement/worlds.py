"""The provider trees of the worked examples (spec placement, 6.6 and 11.3)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import NAMESPACE_DNS, uuid5

from placement.domain.provider_rows import SHARING_TRAIT, InventoryRow, ProviderRow
from placement.domain.snapshot import Snapshot
from placement.domain.snapshot_build import Names, build_snapshot

SHARING = SHARING_TRAIT
STANDARD_TRAITS = frozenset(
    {
        *(f"HW_CPU_X86_{name}" for name in ("SSE", "SSE2", "SSE3", "AVX", "AVX2", "MMX")),
        *("HW_GPU_API_DXVA", "HW_NIC_ACCEL_TLS", "HW_NIC_DCB_PFC", "HW_NUMA_ROOT"),
        *("COMPUTE_VOLUME_MULTI_ATTACH", SHARING),
    }
)
_AMOUNT = re.compile(r"(?P<name>\w+)=(?P<total>\d+)(?:x(?P<ratio>[\d.]+))?(?P<rest>(?:/\w+:\d+)*)")
_FIELDS = {"reserved", "used", "min_unit", "max_unit", "step_size"}


@dataclass
class World:
    """Providers by name.

    ``add`` takes inventories as words like ``VCPU=24x16/reserved:4/used:2``: total, ratio, and any
    field of an inventory.
    """

    providers: dict[str, ProviderRow] = field(default_factory=dict)
    inventories: list[InventoryRow] = field(default_factory=list)

    def add(
        self, name: str, inventory: str = "", *, parent: str = "", aggs: str = "", traits: str = ""
    ) -> None:
        """Add a provider; a parent is added before its children."""
        key = len(self.providers) + 1
        above = self.providers[parent] if parent else None
        self.providers[name] = ProviderRow(
            key,
            uuid_of(name),
            above.provider_id if above else None,
            above.root_id if above else key,
            tuple(sorted(traits.split())),
            tuple(uuid_of(agg) for agg in aggs.split()),
        )
        for match in _AMOUNT.finditer(inventory):
            more = {
                key: int(value)
                for key, _, value in (
                    part.partition(":") for part in match["rest"].split("/") if part
                )
            }
            assert more.keys() <= _FIELDS
            row = InventoryRow(
                key, match["name"], int(match["total"]), allocation_ratio=float(match["ratio"] or 1)
            )
            self.inventories.append(row._replace(**more))  # type: ignore[arg-type]  # checked above

    def names(self) -> Mapping[str, str]:
        """Return the name of each uuid."""
        return {row.uuid: name for name, row in self.providers.items()}

    def snapshot(self) -> Snapshot:
        """Return the providers as a snapshot."""
        traits = {trait for row in self.providers.values() for trait in row.traits}
        return build_snapshot(
            list(self.providers.values()),
            self.inventories,
            Names(
                traits=STANDARD_TRAITS | traits,
                classes=frozenset(row.resource_class for row in self.inventories),
            ),
        )


def uuid_of(name: str) -> str:
    """Return the uuid of a provider or aggregate of the examples."""
    return str(uuid5(NAMESPACE_DNS, name))


def shared_storage() -> World:
    world = World()
    host = "VCPU=24x16 MEMORY_MB=131072x1.5"
    world.add("cn1", host, aggs="AGG", traits="HW_CPU_X86_SSE HW_CPU_X86_SSE2")
    world.add("cn2", f"{host} DISK_GB=2000/reserved:100", aggs="AGG")
    for name in ("ss", "ss2"):
        world.add(name, "DISK_GB=2000/reserved:100", aggs="AGG", traits=SHARING)
    for host_number in "12":
        for cell in "12":
            world.add(f"numa{host_number}_{cell}", parent=f"cn{host_number}")
            world.add(
                f"pf{host_number}_{cell}", "SRIOV_NET_VF=8", parent=f"numa{host_number}_{cell}"
            )
    return world


def numa_aggregate() -> World:
    world = World()
    world.add("cn1", aggs="A")
    world.add("cn2", aggs="A B")
    world.add("numa1_1", "VCPU=24x16", parent="cn1", aggs="C")
    for name in ("numa1_2", "numa2_1", "numa2_2"):
        world.add(name, "VCPU=24x16", parent=f"cn{name[4]}")
    world.add("ss1", "DISK_GB=2000/reserved:100", aggs="A", traits=SHARING)
    world.add("ss2", "DISK_GB=2000/reserved:100", aggs="C", traits=SHARING)
    return world


def granular() -> World:
    world = World()
    host = "VCPU=8 MEMORY_MB=4096"
    net = "SRIOV_NET_VF=8 CUSTOM_NET_MBPS=4000"
    world.add(
        "cn_left",
        f"{host} DISK_GB=500 VGPU=8 {net}",
        aggs="AGGA",
        traits="HW_CPU_X86_AVX HW_CPU_X86_AVX2 HW_GPU_API_DXVA HW_NIC_DCB_PFC CUSTOM_FOO",
    )
    world.add(
        "cn_middle",
        f"{host} {net}",
        aggs="AGGA AGGB",
        traits="HW_CPU_X86_AVX HW_CPU_X86_AVX2 HW_CPU_X86_SSE HW_NIC_ACCEL_TLS",
    )
    world.add(
        "cn_right",
        f"{host} DISK_GB=500 VGPU=8/max_unit:2",
        aggs="AGGB AGGC",
        traits="HW_CPU_X86_MMX HW_GPU_API_DXVA CUSTOM_DISK_SSD",
    )
    world.add("shr_disk_1", "DISK_GB=1000", aggs="AGGA", traits=f"{SHARING} CUSTOM_DISK_SSD")
    world.add("shr_disk_2", "DISK_GB=1000", aggs="AGGA AGGB", traits=SHARING)
    world.add("shr_net", "SRIOV_NET_VF=16 CUSTOM_NET_MBPS=40000", aggs="AGGC", traits=SHARING)
    return world


def _numa_hosts(world: World, above: Mapping[str, str]) -> None:
    world.add("ss1", "DISK_GB=2000", aggs="A", traits=SHARING)
    world.add("cn1", parent=above.get("cn1", ""), aggs="A", traits="COMPUTE_VOLUME_MULTI_ATTACH")
    world.add(
        "numa0",
        "VCPU=4/used:2 MEMORY_MB=2048/min_unit:512/step_size:256",
        parent="cn1",
        traits="HW_NUMA_ROOT",
    )
    world.add(
        "numa1",
        "VCPU=4 MEMORY_MB=2048/min_unit:256/max_unit:1024",
        parent="cn1",
        traits="HW_NUMA_ROOT CUSTOM_FOO",
    )
    world.add("fpga0", "FPGA=1", parent="numa0")
    world.add("fpga1_0", "FPGA=1", parent="numa1")
    world.add("fpga1_1", "FPGA=1", parent="numa1")
    world.add("pgpu0", "VGPU=8", parent="numa0")
    world.add("sriov_agent", parent="cn1", traits="CUSTOM_VNIC_TYPE_DIRECT")
    for number in (1, 2):
        world.add(
            f"esn{number}",
            f"NET_BW_EGR_KILOBIT_PER_SEC={number}0000",
            parent="sriov_agent",
            traits=f"CUSTOM_PHYSNET{number}",
        )
    world.add("ovs_agent", parent="cn1", traits="CUSTOM_VNIC_TYPE_NORMAL")
    world.add(
        "br_int", "NET_BW_EGR_KILOBIT_PER_SEC=1000", parent="ovs_agent", traits="CUSTOM_PHYSNET0"
    )
    world.add(
        "cn2",
        "VCPU=8/used:3 MEMORY_MB=2048/min_unit:1024/step_size:128 DISK_GB=1000",
        parent=above.get("cn2", ""),
        aggs="A",
        traits="CUSTOM_FOO",
    )
    nics: tuple[tuple[int, tuple[int, ...]], ...] = ((4, (1, 2)), (2, (1, 2, 1, 2)), (8, (1,)))
    for nic, (functions, networks) in enumerate(nics, start=1):
        world.add(f"nic{nic}", parent="cn2", traits="CUSTOM_HW_NIC_ROOT")
        for port, network in enumerate(networks, start=1):
            world.add(
                f"pf{nic}_{port}",
                f"CUSTOM_VF={functions}",
                parent=f"nic{nic}",
                traits=f"CUSTOM_PHYSNET{network}",
            )


def numa_network() -> World:
    world = World()
    _numa_hosts(world, {})
    return world


def deep_numa_network() -> World:
    world = World()
    world.add("gp1")
    world.add("p1", parent="gp1")
    world.add("p2", parent="gp1")
    _numa_hosts(world, {"cn1": "p1", "cn2": "p2"})
    return world


def neutron() -> World:
    world = World()
    normal = "CUSTOM_VNIC_TYPE_NORMAL"
    direct = " ".join(
        f"CUSTOM_VNIC_TYPE_{kind}" for kind in ("DIRECT", "DIRECT_PHYSICAL", "MACVTAP")
    )
    networks = (("OTHER",), ("MSN_S1",), ("MSN_S2",), ("MSN_S1", "MSN_S2"))
    for number, physnets in enumerate(networks):
        host = f"compute{number}"
        world.add(host, "VCPU=8 MEMORY_MB=4096 DISK_GB=500")
        world.add(
            f"{host}:ovs",
            "NET_PACKET_RATE_KILOPACKET_PER_SEC=1000",
            parent=host,
            traits=normal,
        )
        world.add(f"{host}:sriov", parent=host, traits=direct)
        for at, physnet in enumerate(physnets):
            bridge, port = (5000, 10000) if len(physnets) == 1 else (1000, 1000)
            for agent, name, rate, kind in (
                ("ovs", "br-ex", bridge, normal),
                ("sriov", "enp129s0f", port, direct),
            ):
                world.add(
                    f"{host}:{agent}:{name}{at}",
                    f"NET_BW_EGR_KILOBIT_PER_SEC={rate} NET_BW_IGR_KILOBIT_PER_SEC={rate}",
                    parent=f"{host}:{agent}",
                    traits=f"{kind} CUSTOM_PHYSNET_{physnet}",
                )
    return world


def small(*lines: tuple[str, str, str, str, str]) -> Callable[[], World]:
    """Return a world of providers: name, parent, inventory, aggregates, traits."""

    def build() -> World:
        world = World()
        for name, parent, inventory, aggs, traits in lines:
            world.add(name, inventory, parent=parent, aggs=aggs, traits=traits)
        return world

    return build
