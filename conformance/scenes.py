"""What the public test files expect to find on the server (spec placement, 11.3).

A scene is plain data: aggregates, providers (parents first), inventories, traits, allocations, and
the environment variables under which the test files look the resulting ids up. Scenes carry the
names that the files use; :mod:`seeding` turns one into HTTP requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SHARING = "MISC_SHARES_VIA_AGGREGATE"
EGRESS = "NET_BW_EGR_KILOBIT_PER_SEC"
INGRESS = "NET_BW_IGR_KILOBIT_PER_SEC"
PROFILES = ("legacy", "secure", "open", "cors")

InventoryFields = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider to create.

    Attributes:
        name: Its name, and what other rows of the scene call it.
        parent: Name of its parent; empty for a root.
        aggregates: Variables that hold its aggregates.
        inventories: Per resource class the total, or the fields that differ from the defaults.
        traits: Its traits.
        variables: Variables that get its uuid.
        uuid_variable: Variable that already holds its uuid; empty makes a fresh one.
        name_variable: Variable that holds the name it gets on the server; empty takes ``name``.
    """

    name: str
    parent: str = ""
    aggregates: tuple[str, ...] = ()
    inventories: Mapping[str, int | InventoryFields] = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    uuid_variable: str = ""
    name_variable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An allocation of a consumer without type; ``$NAME`` stands for a variable's text."""

    provider: str
    resources: Mapping[str, int]
    project: str
    user: str
    variable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything one fixture of the test files prepares.

    Attributes:
        aggregates: Variables that each get a fresh uuid.
        fresh: More of them.
        classes: Custom resource classes to create first.
        providers: Providers in order.
        held: Allocations in order.
        aliases: Variables that get the uuid of a named provider at the end.
    """

    aggregates: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    providers: tuple[Provider, ...] = ()
    held: tuple[Held, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)


def _upper(name: str) -> tuple[str]:
    return (f"{name.upper()}_UUID",)


def _allocation() -> Scene:
    disk = {"total": 2048, "step_size": 10, "min_unit": 10, "max_unit": 1000}
    return Scene(
        fresh=("ALT_USER_ID", "ALT_RP_UUID", "ALT_RP_NAME"),
        providers=(
            Provider(
                name="rp",
                uuid_variable="RP_UUID",
                name_variable="RP_NAME",
                inventories={"DISK_GB": disk, "VCPU": 10},
            ),
        ),
        held=(
            _held({"DISK_GB": 1000}, "$USER_ID", "CONSUMER_0"),
            _held({"VCPU": 6}, "$USER_ID", "CONSUMER_ID"),
            _held({"DISK_GB": 20, "VCPU": 1}, "$ALT_USER_ID", "ALT_CONSUMER_ID"),
        ),
    )


def _held(resources: Mapping[str, int], user: str, variable: str) -> Held:
    return Held(
        provider="rp", resources=resources, project="$PROJECT_ID", user=user, variable=variable
    )


def _shared_storage() -> Scene:
    everywhere = ("AGG_UUID",)
    compute: dict[str, int | InventoryFields] = {
        "VCPU": {"total": 24, "allocation_ratio": 16.0},
        "MEMORY_MB": {"total": 131072, "allocation_ratio": 1.5},
    }
    disk: dict[str, int | InventoryFields] = {"DISK_GB": {"total": 2000, "reserved": 100}}
    providers = [
        Provider(
            name="cn1",
            aggregates=everywhere,
            inventories=compute,
            traits=("HW_CPU_X86_SSE", "HW_CPU_X86_SSE2"),
            variables=_upper("cn1"),
        ),
        Provider(
            name="cn2",
            aggregates=everywhere,
            inventories={**compute, **disk},
            variables=_upper("cn2"),
        ),
        *(
            Provider(
                name=name,
                aggregates=everywhere,
                inventories=disk,
                traits=(SHARING,),
                variables=_upper(name),
            )
            for name in ("ss", "ss2")
        ),
    ]
    for host in "12":
        for node in "12":
            numa, port = f"numa{host}_{node}", f"pf{host}_{node}"
            providers.append(Provider(name=numa, parent=f"cn{host}", variables=_upper(numa)))
            providers.append(
                Provider(
                    name=port,
                    parent=numa,
                    inventories={"SRIOV_NET_VF": 8},
                    variables=_upper(port),
                )
            )
    return Scene(aggregates=everywhere, providers=tuple(providers))


def _numa_aggregate() -> Scene:
    first, second, third = "AGGA_UUID", "AGGB_UUID", "AGGC_UUID"
    cpu = {"VCPU": {"total": 24, "allocation_ratio": 16.0}}
    disk = {"DISK_GB": {"total": 2000, "reserved": 100}}

    def shared(name: str, aggregate: str) -> Provider:
        return Provider(
            name=name,
            aggregates=(aggregate,),
            inventories=disk,
            traits=(SHARING,),
            variables=_upper(name),
        )

    def node(name: str, parent: str, *aggregates: str) -> Provider:
        return Provider(
            name=name,
            parent=parent,
            aggregates=aggregates,
            inventories=cpu,
            variables=_upper(name),
        )

    return Scene(
        aggregates=(first, second, third),
        providers=(
            Provider(name="cn1", aggregates=(first,), variables=_upper("cn1")),
            Provider(name="cn2", aggregates=(first, second), variables=_upper("cn2")),
            shared("ss1", first),
            shared("ss2", third),
            node("numa1_1", "cn1", third),
            node("numa1_2", "cn1"),
            node("numa2_1", "cn2"),
            node("numa2_2", "cn2"),
        ),
    )


def _numa_network(*, is_deep: bool) -> Scene:
    everywhere = ("AGGA_UUID",)
    providers = [
        Provider(
            name="ss1",
            aggregates=everywhere,
            inventories={"DISK_GB": 2000},
            traits=(SHARING,),
            variables=_upper("ss1"),
        )
    ]
    if is_deep:
        providers += [
            Provider(name="gp1"),
            Provider(name="p1", parent="gp1"),
            Provider(name="p2", parent="gp1"),
        ]
    providers += _numa_host("p1" if is_deep else "", everywhere)
    providers += _network_host("p2" if is_deep else "", everywhere)
    project, user = "numafx-project", "numafx-user"
    return Scene(
        aggregates=everywhere,
        providers=tuple(providers),
        held=(
            Held(provider="numa0", resources={"VCPU": 2}, project=project, user=user),
            Held(provider="cn2", resources={"VCPU": 3}, project=project, user=user),
        ),
    )


def _node(
    name: str,
    parent: str,
    traits: tuple[str, ...] = (),
    inventories: Mapping[str, int | InventoryFields] | None = None,
    aggregates: tuple[str, ...] = (),
) -> Provider:
    return Provider(
        name=name,
        parent=parent,
        traits=traits,
        inventories=inventories or {},
        aggregates=aggregates,
        variables=_upper(name),
    )


def _numa_host(parent: str, aggregates: tuple[str, ...]) -> list[Provider]:
    first = {"total": 2048, "min_unit": 512, "step_size": 256}
    second = {"total": 2048, "min_unit": 256, "max_unit": 1024}
    return [
        _node("cn1", parent, ("COMPUTE_VOLUME_MULTI_ATTACH",), aggregates=aggregates),
        _node("numa0", "cn1", ("HW_NUMA_ROOT",), {"VCPU": 4, "MEMORY_MB": first}),
        _node("numa1", "cn1", ("HW_NUMA_ROOT", "CUSTOM_FOO"), {"VCPU": 4, "MEMORY_MB": second}),
        _node("fpga0", "numa0", (), {"FPGA": 1}),
        _node("pgpu0", "numa0", (), {"VGPU": 8}),
        _node("fpga1_0", "numa1", (), {"FPGA": 1}),
        _node("fpga1_1", "numa1", (), {"FPGA": 1}),
        _node("sriov_agent", "cn1", ("CUSTOM_VNIC_TYPE_DIRECT",)),
        _node("esn1", "sriov_agent", ("CUSTOM_PHYSNET1",), {EGRESS: 10000}),
        _node("esn2", "sriov_agent", ("CUSTOM_PHYSNET2",), {EGRESS: 20000}),
        _node("ovs_agent", "cn1", ("CUSTOM_VNIC_TYPE_NORMAL",)),
        _node("br_int", "ovs_agent", ("CUSTOM_PHYSNET0",), {EGRESS: 1000}),
    ]


def _network_host(parent: str, aggregates: tuple[str, ...]) -> list[Provider]:
    memory = {"total": 2048, "min_unit": 1024, "step_size": 128}
    inventories: dict[str, int | InventoryFields] = {
        "VCPU": 8,
        "MEMORY_MB": memory,
        "DISK_GB": 1000,
    }
    providers = [_node("cn2", parent, ("CUSTOM_FOO",), inventories, aggregates)]
    providers += [_node(f"nic{number}", "cn2", ("CUSTOM_HW_NIC_ROOT",)) for number in "123"]
    ports = {"1": (4, "12"), "2": (2, "1212"), "3": (8, "1")}  # card: functions, networks of ports
    for card, (functions, networks) in ports.items():
        for index, network in enumerate(networks, start=1):
            trait = (f"CUSTOM_PHYSNET{network}",)
            providers.append(
                _node(f"pf{card}_{index}", f"nic{card}", trait, {"CUSTOM_VF": functions})
            )
    return providers


def _non_shared() -> Scene:
    return Scene(
        aggregates=("AGGA_UUID", "AGGB_UUID", "AGGC_UUID"),
        providers=tuple(
            _node(name, "", (), {"VCPU": 24, "MEMORY_MB": 131072, "DISK_GB": 2000})
            for name in ("cn1", "cn2", "cn3")
        ),
    )


def _granular() -> Scene:
    first, second, third = "AGGA", "AGGB", "AGGC"
    base = {"VCPU": 8, "MEMORY_MB": 4096}
    network = {"SRIOV_NET_VF": 8, "CUSTOM_NET_MBPS": 4000}

    def named(
        name: str,
        aggregates: tuple[str, ...],
        inventories: Mapping[str, int | InventoryFields],
        *traits: str,
    ) -> Provider:
        return Provider(
            name=name,
            aggregates=aggregates,
            inventories=inventories,
            traits=traits,
            variables=(name.upper(),),
        )

    return Scene(
        aggregates=(first, second, third),
        classes=("CUSTOM_NET_MBPS",),
        providers=(
            named(
                "cn_left",
                (first,),
                {**base, "DISK_GB": 500, "VGPU": 8, **network},
                "HW_CPU_X86_AVX",
                "HW_CPU_X86_AVX2",
                "HW_GPU_API_DXVA",
                "HW_NIC_DCB_PFC",
                "CUSTOM_FOO",
            ),
            named(
                "cn_middle",
                (first, second),
                {**base, **network},
                "HW_CPU_X86_AVX",
                "HW_CPU_X86_AVX2",
                "HW_CPU_X86_SSE",
                "HW_NIC_ACCEL_TLS",
            ),
            named(
                "cn_right",
                (second, third),
                {**base, "DISK_GB": 500, "VGPU": {"total": 8, "max_unit": 2}},
                "HW_CPU_X86_MMX",
                "HW_GPU_API_DXVA",
                "CUSTOM_DISK_SSD",
            ),
            named("shr_disk_1", (first,), {"DISK_GB": 1000}, SHARING, "CUSTOM_DISK_SSD"),
            named("shr_disk_2", (first, second), {"DISK_GB": 1000}, SHARING),
            named("shr_net", (third,), {"SRIOV_NET_VF": 16, "CUSTOM_NET_MBPS": 40000}, SHARING),
        ),
    )


def _neutron_qos() -> Scene:
    first, second, other = (f"CUSTOM_PHYSNET_{name}" for name in ("MSN_S1", "MSN_S2", "OTHER"))
    hosts = (  # networks of bridges and of ports, rate of each bridge, rate of each port
        ("compute0", (other,), 5000, 10000),
        ("compute1", (first,), 5000, 10000),
        ("compute2", (second,), 5000, 10000),
        ("compute3", (first, second), 1000, 1000),
    )
    providers = [provider for host in hosts for provider in _qos_host(*host)]
    return Scene(
        providers=tuple(providers),
        aliases={"compute3:sriov_agent": "compute2:NIC Switch agent"},  # an oddity no test reads
    )


def _qos_host(
    host: str, networks: tuple[str, ...], bridge_rate: int, port_rate: int
) -> list[Provider]:
    normal = ("CUSTOM_VNIC_TYPE_NORMAL",)
    direct = tuple(f"CUSTOM_VNIC_TYPE_{word}" for word in ("DIRECT", "DIRECT_PHYSICAL", "MACVTAP"))
    bridge, switch = f"{host}:Open vSwitch agent", f"{host}:NIC Switch agent"
    compute = {"VCPU": 8, "MEMORY_MB": 4096, "DISK_GB": 500}
    packets = {"NET_PACKET_RATE_KILOPACKET_PER_SEC": 1000}

    def made(
        name: str,
        parent: str,
        variable: str,
        inventories: Mapping[str, int],
        traits: tuple[str, ...] = (),
    ) -> Provider:
        return Provider(
            name=name,
            parent=parent,
            variables=(variable,),
            inventories=inventories,
            traits=traits,
        )

    providers = [
        made(host, "", host, compute),
        made(bridge, host, f"{host}:ovs_agent", packets, normal),
        made(switch, host, f"{host}:sriov_agent", {}, direct),
    ]
    for index, network in enumerate(networks):
        suffix = str(index + 1) if index else ""
        rates = {EGRESS: bridge_rate, INGRESS: bridge_rate}
        name, variable = f"{bridge}:br-ex{suffix}", f"{host}:br_ex{suffix}"
        providers.append(made(name, bridge, variable, rates, (*normal, network)))
        rates = {EGRESS: port_rate, INGRESS: port_rate}
        name, variable = f"{switch}:enp129s0f{index}", f"{host}:pf{index}"
        providers.append(made(name, switch, variable, rates, (*direct, network)))
    return providers


SCENES: Mapping[str, tuple[str, Scene]] = {
    "APIFixture": ("legacy", Scene()),
    "LegacyRBACPolicyFixture": ("legacy", Scene()),
    "SecureRBACPolicyFixture": ("secure", Scene()),
    "OpenPolicyFixture": ("open", Scene()),
    "CORSFixture": ("cors", Scene()),
    "AllocationFixture": ("legacy", _allocation()),
    "SharedStorageFixture": ("legacy", _shared_storage()),
    "NonSharedStorageFixture": ("legacy", _non_shared()),
    "NUMAAggregateFixture": ("legacy", _numa_aggregate()),
    "NUMANetworkFixture": ("legacy", _numa_network(is_deep=False)),
    "DeepNUMANetworkFixture": ("legacy", _numa_network(is_deep=True)),
    "GranularFixture": ("legacy", _granular()),
    "NeutronQoSMultiSegmentFixture": ("legacy", _neutron_qos()),
}
"""Fixture of the test files -> profile of the server it needs, and the data on it."""
