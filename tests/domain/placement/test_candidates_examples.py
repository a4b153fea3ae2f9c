"""The worked examples of the specification (placement, 6.6), each through the text of its query."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from placement.domain.candidate_encoding import encode_candidates
from placement.domain.candidate_parsing import parse_candidates_query
from placement.domain.candidate_query import SearchOptions, Strategy
from placement.domain.candidates import find_candidates
from tests.domain.placement.worlds import (
    SHARING,
    World,
    deep_numa_network,
    granular,
    neutron,
    numa_aggregate,
    numa_network,
    shared_storage,
    small,
    uuid_of,
)

_NAME = re.compile(r"\{([^}]+)\}")
ALL = "VCPU:1,MEMORY_MB:1024,DISK_GB:100"


def ask(
    build: Callable[[], World],
    text: str,
    minor: int,
    options: SearchOptions | None = None,
) -> tuple[World, dict[str, Any]]:
    world = build()
    snapshot = world.snapshot()
    query = _NAME.sub(lambda match: uuid_of(match[1]), text)
    parsed = parse_candidates_query(query, minor)
    found = find_candidates(snapshot, parsed.query, options or SearchOptions())
    answer: dict[str, Any] = json.loads(encode_candidates(snapshot, found, minor))
    return world, answer


def served(world: World, answer: dict[str, Any]) -> list[str]:
    """Return the providers of each candidate as names joined by ``+``."""
    names = world.names()
    return sorted(
        "+".join(sorted(names[uuid] for uuid in request["allocations"]))
        for request in answer["allocation_requests"]
    )


def counts(answer: dict[str, Any]) -> tuple[int, int]:
    return len(answer["allocation_requests"]), len(answer["provider_summaries"])


SHARED = (
    (f"resources={ALL}", 10, (5, 4)),
    (f"resources={ALL}&limit=1", 16, (1, None)),
    (f"resources={ALL}&limit=10&limit=1", 16, (5, 4)),
    (f"resources={ALL}&required=HW_CPU_X86_SSE", 17, (2, 3)),
    (f"resources={ALL}&required=!HW_CPU_X86_SSE", 22, (3, 3)),
    (f"resources={ALL}&required=HW_CPU_X86_SSE3", 17, (0, 0)),
    ("resources=VCPU:1", 26, (2, 2)),
    ("resources=VCPU:1", 27, (2, 2)),
    ("resources=VCPU:1", 29, (2, 10)),
    ("resources=SRIOV_NET_VF:4", 28, (4, 4)),
    ("resources=SRIOV_NET_VF:4", 29, (4, 10)),
    ("resources=VCPU:1,SRIOV_NET_VF:4", 28, (0, 0)),
    ("resources=VCPU:1,SRIOV_NET_VF:4", 29, (4, 10)),
    ("resources=VCPU:1,SRIOV_NET_VF:4&limit=1", 29, (1, 5)),
    ("resources=DISK_GB:10,SRIOV_NET_VF:4", 28, (8, 6)),
    ("resources=VCPU:1,SRIOV_NET_VF:4&in_tree={cn1}", 31, (2, 5)),
    ("resources=VCPU:1,SRIOV_NET_VF:4&in_tree={pf1_2}", 31, (2, 5)),
    ("resources=VCPU:1,DISK_GB:10&in_tree={cn1}", 31, (0, 0)),
    ("resources=VCPU:1,DISK_GB:10&in_tree={cn2}", 31, (1, 5)),
)
TWO = "resources1=VCPU:1,MEMORY_MB:1024&resources2=DISK_GB:100"
BOTH = "resources1=VCPU:1&resources2=DISK_GB:100"
GRANULAR = (
    ("resources1=VCPU:1&resources2=MEMORY_MB:1024&group_policy=none", 25, (3, 3)),
    ("resources1=VCPU:1&resources2=MEMORY_MB:1024&group_policy=isolate", 25, (0, 0)),
    (
        (
            "resources=VCPU:3,MEMORY_MB:512&resources1=VCPU:1,MEMORY_MB:1024&resources2=VCPU:2"
            "&group_policy=none"
        ),
        25,
        (3, 3),
    ),
    ("resources=VCPU:1&resources1=MEMORY_MB:2048", 25, (3, 3)),
    (f"{TWO}&group_policy=isolate", 25, (5, 5)),
    (f"{TWO}&group_policy=none", 25, (7, 5)),
    ("resources1=DISK_GB:800", 25, (2, 2)),
    ("resources=DISK_GB:800", 25, (2, 2)),
    (f"{TWO}&required2=CUSTOM_DISK_SSD&group_policy=isolate", 25, (2, 3)),
    (f"{BOTH}&required2=!CUSTOM_DISK_SSD&group_policy=none", 25, (4, 4)),
    (f"{BOTH}&member_of2={{AGGC}}&group_policy=none", 25, (1, 1)),
    (
        (
            f"{BOTH}&required1=!HW_CPU_X86_SSE&required2=CUSTOM_DISK_SSD"
            "&member_of2=in:{AGGA},{AGGC}&group_policy=none"
        ),
        25,
        (2, 3),
    ),
    (
        f"{BOTH}&member_of2=in:{{AGGB}},{{AGGC}}&member_of2={{AGGA}}&group_policy=isolate",
        25,
        (3, 4),
    ),
    (
        (
            "resources=VCPU:2,MEMORY_MB:2048,SRIOV_NET_VF:1,CUSTOM_NET_MBPS:2000"
            "&resources1=SRIOV_NET_VF:1,CUSTOM_NET_MBPS:3000"
        ),
        25,
        (1, 2),
    ),
    ("resources1=VGPU:1&resources2=VGPU:1&resources3=VGPU:1&group_policy=none", 25, (1, 1)),
    (
        (
            "required=in:HW_GPU_API_DXVA,HW_NIC_ACCEL_TLS&required=HW_CPU_X86_AVX,!CUSTOM_FOO"
            "&resources=VCPU:1,DISK_GB:1"
        ),
        39,
        (2, None),
    ),
    (
        (
            "required=in:HW_CPU_X86_MMX,HW_NIC_ACCEL_TLS&required=in:CUSTOM_DISK_SSD,CUSTOM_FOO"
            "&resources=VCPU:1,DISK_GB:1"
        ),
        39,
        (3, None),
    ),
    ("required=CUSTOM_FOO&required=HW_CPU_X86_MMX&resources=VCPU:1", 38, (1, 1)),
    ("resources=VCPU:1&required=HW_CPU_X86_SSE", 34, (1, 1)),
    ("resources=VCPU:1,DISK_GB:1&required=HW_CPU_X86_SSE", 34, (2, 3)),
    (
        (
            "resources=VCPU:1&required=HW_CPU_X86_SSE"
            "&resources1=DISK_GB:1&resources2=DISK_GB:1&group_policy=isolate"
        ),
        34,
        (2, 3),
    ),
)
DISK = "resources=VCPU:1,DISK_GB:1000"
AGGREGATES = (
    ("resources=VCPU:1", 32, (4, None)),
    ("resources=VCPU:1&member_of={A}", 32, (4, None)),
    ("resources1=VCPU:1&member_of1={A}", 32, (0, 0)),
    ("resources=VCPU:1&member_of={B}", 32, (2, None)),
    ("resources=VCPU:1&member_of={C}", 32, (1, None)),
    ("resources1=VCPU:1&member_of1={C}", 32, (1, None)),
    (DISK, 32, (6, None)),
    (f"{DISK}&member_of={{A}}", 32, (4, None)),
    (f"{DISK}&member_of={{B}}", 32, (0, 0)),
    (f"{DISK}&member_of={{C}}", 32, (1, None)),
    (f"{DISK}&member_of=!{{A}}", 32, (0, 0)),
    (f"{DISK}&member_of=!{{B}}", 32, (4, None)),
    (f"{DISK}&member_of=!{{C}}", 32, (3, None)),
    (f"{DISK}&member_of=in:{{A}},{{B}}&member_of=!{{C}}", 32, (3, None)),
    (f"{DISK}&member_of={{A}}&member_of=!in:{{B}},{{C}}", 32, (1, None)),
)
NET = "NET_BW_EGR_KILOBIT_PER_SEC"
ACCEL = "resources_COMPUTE=VCPU:1&resources_ACCEL=FPGA:1&group_policy=none"
PORTS = (
    "resources_PORT1=CUSTOM_VF:{0}&required_PORT1=CUSTOM_PHYSNET1"
    "&resources_PORT2=CUSTOM_VF:{0}&required_PORT2=CUSTOM_PHYSNET2&resources=VCPU:1"
)
NIC = "&required_NIC=CUSTOM_HW_NIC_ROOT&same_subtree=_NIC,_PORT1,_PORT2"
SPLIT = (
    "resources_PORT1=CUSTOM_VF:2&required_PORT1=CUSTOM_PHYSNET1"
    "&resources_PORT2A=CUSTOM_VF:1&required_PORT2A=CUSTOM_PHYSNET2"
    "&resources_PORT2B=CUSTOM_VF:1&required_PORT2B=CUSTOM_PHYSNET2"
    "&required_NIC=CUSTOM_HW_NIC_ROOT&same_subtree=_NIC,_PORT1,_PORT2A,_PORT2B"
)
SAME_PORT = "resources_PORT1=CUSTOM_VF:8&required_PORT2=CUSTOM_PHYSNET1&same_subtree=_PORT1,_PORT2"
FOO = (
    "resources_COMPUTE1=VCPU:1&required_FOO=CUSTOM_FOO&required_NUMA=HW_NUMA_ROOT"
    "&same_subtree=_COMPUTE1,_FOO,_NUMA"
)
FPGAS = (
    "required_NUMA=HW_NUMA_ROOT&resources_A=FPGA:1&resources_B=FPGA:1&group_policy=isolate"
    "&same_subtree=_NUMA,_A,_B"
)
COMPUTES = (
    "resources_COMPUTE1=VCPU:1&resources_COMPUTE2=MEMORY_MB:1024&same_subtree=_COMPUTE1,_COMPUTE2"
)
MULTI_ATTACH = "root_required=COMPUTE_VOLUME_MULTI_ATTACH"
NUMA = (
    ("resources=VCPU:1", 34, (3, 23)),
    ("resources_LEFT=VCPU:1&resources_RIGHT=VCPU:1&group_policy=isolate", 34, (2, 12)),
    (
        (
            f"resources=VCPU:1&resources_NET1={NET}:10&required_NET1=CUSTOM_PHYSNET1"
            f"&resources_NET2={NET}:20&required_NET2=CUSTOM_PHYSNET2&group_policy=isolate"
        ),
        34,
        (2, 12),
    ),
    (
        (
            f"resources_BWA={NET}:10&required_BWA=CUSTOM_PHYSNET1"
            f"&resources_BWB={NET}:20&required_BWB=CUSTOM_PHYSNET1&group_policy=none"
        ),
        34,
        (1, 12),
    ),
    (ACCEL, 36, (6, None)),
    (f"{ACCEL}&same_subtree=_COMPUTE", 36, (6, None)),
    (f"{ACCEL}&same_subtree=_COMPUTE,_ACCEL", 36, (3, None)),
    (f"{COMPUTES}&group_policy=none", 36, (3, None)),
    (f"{COMPUTES}&group_policy=isolate", 36, (0, 0)),
    (f"{PORTS.format(4)}&group_policy=none", 36, (2, None)),
    (f"{PORTS.format(4)}{NIC}&group_policy=none", 36, (1, None)),
    (f"{PORTS.format(2)}{NIC}&group_policy=none", 36, (5, None)),
    (f"{PORTS.format(2)}{NIC}&group_policy=isolate", 36, (5, None)),
    (f"{SPLIT}&group_policy=none", 36, (9, None)),
    (f"{SPLIT}&group_policy=isolate", 36, (4, None)),
    (f"{SAME_PORT}&group_policy=none", 36, (1, None)),
    (f"{SAME_PORT}&group_policy=isolate", 36, (0, 0)),
    (f"{FOO}&group_policy=none", 36, (1, None)),
    (f"{FOO}&group_policy=isolate", 36, (0, 0)),
    (FPGAS, 36, (2, None)),
    (f"{FPGAS},_A", 36, (2, None)),
    ("resources=VCPU:1&root_required=HW_NUMA_ROOT", 35, (0, 0)),
    (f"resources=VCPU:1,MEMORY_MB:1024&{MULTI_ATTACH}", 35, (4, None)),
    (
        f"resources1=VCPU:1&resources2=MEMORY_MB:1024&{MULTI_ATTACH}&group_policy=none",
        35,
        (4, None),
    ),
    (
        f"resources1=VCPU:1&resources2=MEMORY_MB:1024&{MULTI_ATTACH}&group_policy=isolate",
        35,
        (2, None),
    ),
    (f"resources={ALL}&root_required=!MISC_SHARES_VIA_AGGREGATE", 35, (6, None)),
    ("resources=VCPU:1,DISK_GB:100&required=CUSTOM_FOO", 35, (3, None)),
    ("resources=VCPU:1,DISK_GB:100&root_required=CUSTOM_FOO", 35, (2, None)),
    ("resources=VCPU:3&root_required=!HW_NUMA_ROOT", 35, (2, None)),
    ("resources=VCPU:1&required=CUSTOM_FOO&root_required=CUSTOM_FOO", 35, (1, None)),
    ("resources=VCPU:1&required=CUSTOM_FOO&root_required=!CUSTOM_FOO", 35, (1, None)),
    ("resources=VCPU:1&required=!CUSTOM_FOO&root_required=CUSTOM_FOO", 35, (0, 0)),
)
DEEP = (
    ("resources=VCPU:1", 36, (3, 26)),
    (f"{ACCEL}&same_subtree=_COMPUTE,_ACCEL", 36, (3, None)),
    (f"{PORTS.format(4)}{NIC}&group_policy=none", 36, (3, None)),
)


def port(name: str, rate: int) -> str:
    return (
        f"resources_{name}={NET}:{rate},NET_BW_IGR_KILOBIT_PER_SEC:{rate}"
        f"&required_{name}=CUSTOM_VNIC_TYPE_NORMAL"
        f"&required_{name}=in:CUSTOM_PHYSNET_MSN_S1,CUSTOM_PHYSNET_MSN_S2"
    )


NEUTRON = (
    (
        (
            f"resources={ALL}&resources_P={NET}:1000"
            "&required_P=CUSTOM_VNIC_TYPE_NORMAL,CUSTOM_PHYSNET_OTHER"
        ),
        39,
        (1, None),
    ),
    (f"resources={ALL}&{port('P', 1000)}", 39, (4, None)),
    (f"resources={ALL}&{port('P', 1000)}&{port('Q', 1000)}&group_policy=none", 39, (4, None)),
    (f"resources={ALL}&{port('P', 100)}&{port('Q', 100)}&group_policy=none", 39, (6, None)),
)
WORLDS = (
    ("shared storage", shared_storage, SHARED),
    ("granular", granular, GRANULAR),
    ("aggregates of NUMA cells", numa_aggregate, AGGREGATES),
    ("NUMA and network", numa_network, NUMA),
    ("deep trees", deep_numa_network, DEEP),
    ("ports of several segments", neutron, NEUTRON),
)


@pytest.mark.parametrize(
    ("build", "text", "minor", "expected"),
    [
        pytest.param(build, text, minor, expected, id=f"{name}: {text} at 1.{minor}")
        for name, build, rows in WORLDS
        for text, minor, expected in rows
    ],
)
@pytest.mark.parametrize("strategy", list(Strategy))
def test_example_has_as_many_candidates_and_summaries_as_specified(
    build: Callable[[], World],
    text: str,
    minor: int,
    expected: tuple[int, int | None],
    strategy: Strategy,
) -> None:
    _, answer = ask(build, text, minor, SearchOptions(strategy=strategy))
    requests, shown = counts(answer)
    assert requests == expected[0]
    if expected[1] is not None:
        assert shown == expected[1]


a8 = ("a", "", "VCPU=10/used:8", "", "")
raid = (
    ("a", "", "VCPU=8", "G", ""),
    ("s1", "", "DISK_GB=100", "G", f"{SHARING} CUSTOM_RAID"),
    ("s2", "", "DISK_GB=100", "G", SHARING),
)
child = (("r", "", "", "", "CUSTOM_T"), ("c", "r", "VCPU=8", "", "CUSTOM_X2"))
resourceless = "resources_A=VCPU:1&same_subtree=_A,_B&group_policy=none"
disks = (
    ("cn1", "", "VCPU=8", "G", ""),
    ("cn2", "", "VCPU=8", "G", ""),
    ("ss", "", "DISK_GB=100", "G", SHARING),
)
cells = (
    ("r", "", "", "", ""),
    ("n0", "r", "VCPU=8", "", ""),
    ("n1", "r", "VCPU=8", "", ""),
    ("d1", "r", "DISK_GB=10", "", ""),
    ("d2", "r", "DISK_GB=10", "", ""),
)
Line = tuple[str, str, str, str, str]
SMALL: tuple[tuple[str, tuple[Line, ...], str, list[str]], ...] = (
    ("room for the last two", (a8,), "resources=VCPU:2", ["a"]),
    ("no room for three", (a8,), "resources=VCPU:3", []),
    ("a shared disk", (raid[0], raid[2]), "resources=VCPU:1,DISK_GB:1", ["a+s2"]),
    (
        "a disk that is not shared",
        (raid[0], ("s", "", "DISK_GB=100", "G", "")),
        "resources=VCPU:1,DISK_GB:1",
        [],
    ),
    (
        "a shared disk of another aggregate",
        (raid[0], ("s", "", "DISK_GB=100", "H", SHARING)),
        "resources=VCPU:1,DISK_GB:1",
        [],
    ),
    (
        "a sharing provider counts once",
        (
            ("a", "", "VCPU=8", "G", ""),
            ("b", "", "VCPU=8", "G", ""),
            ("s", "", "VCPU=8", "G", SHARING),
        ),
        "resources=VCPU:1",
        ["a", "b", "s"],
    ),
    (
        "traits come from the sharing provider",
        raid,
        "resources=VCPU:1,DISK_GB:1&required=CUSTOM_RAID",
        ["a+s1"],
    ),
    (
        "forbidden traits of sharing providers",
        raid,
        "resources=VCPU:1,DISK_GB:1&required=!CUSTOM_RAID",
        ["a+s2"],
    ),
    (
        "everything is shared",
        (("s1", "", "VCPU=8", "G", SHARING), ("s2", "", "DISK_GB=8", "G", SHARING)),
        "resources=VCPU:1,DISK_GB:1",
        ["s1+s2"],
    ),
    ("only used providers have traits", child, "resources=VCPU:1&required=CUSTOM_T", []),
    ("traits of the root", child, "resources=VCPU:1&root_required=CUSTOM_T", ["c"]),
    ("a group without resources", child, f"{resourceless}&required_B=CUSTOM_T", ["c"]),
    (
        "a group that only forbids",
        (child[0], (*child[1][:4], ""), ("x", "", "", "", "CUSTOM_X")),
        f"{resourceless}&required_B=!CUSTOM_X",
        ["c", "c"],
    ),
    (
        "the unsuffixed group on a shared disk, for two hosts",
        disks,
        "resources=DISK_GB:10&resources1=VCPU:1",
        ["cn1+ss", "cn2+ss"],
    ),
    (
        "a suffixed group on a shared disk, for two hosts",
        disks,
        "resources1=DISK_GB:10&resources=VCPU:1",
        ["cn1+ss", "cn2+ss"],
    ),
    (
        "a sharing provider that is no root",
        (
            ("r", "", "", "", ""),
            ("s", "r", "DISK_GB=10", "G", SHARING),
            ("cn", "", "VCPU=8", "G", ""),
        ),
        "resources=VCPU:1,DISK_GB:1",
        ["cn+s"],
    ),
)


@pytest.mark.parametrize(
    ("lines", "text", "expected"), [pytest.param(*row[1:], id=row[0]) for row in SMALL]
)
def test_small_case(
    lines: tuple[tuple[str, str, str, str, str], ...], text: str, expected: list[str]
) -> None:
    world, answer = ask(small(*lines), text, 36)
    assert served(world, answer) == expected


@pytest.mark.parametrize("policy", ["", "&group_policy=none", "&group_policy=isolate"])
def test_amounts_of_both_kinds_of_groups_are_summed_per_candidate(policy: str) -> None:
    world, answer = ask(small(*cells), f"resources=VCPU:1,DISK_GB:1&resources1=VCPU:2{policy}", 36)
    names = world.names()
    spread = sorted(
        tuple(
            sorted(
                (names[uuid], part["resources"]["VCPU"])
                for uuid, part in request["allocations"].items()
                if "VCPU" in part["resources"]
            )
        )
        for request in answer["allocation_requests"]
    )
    assert spread == sorted(
        2 * [(("n0", 3),), (("n1", 3),), (("n0", 1), ("n1", 2)), (("n0", 2), ("n1", 1))]
    )


def test_summaries_show_the_root_of_a_sharing_provider() -> None:
    lines = SMALL[-1][1]
    _, answer = ask(small(*lines), "resources=VCPU:1,DISK_GB:1", 36)
    assert counts(answer) == (1, 3)


def test_mappings_name_every_provider_of_each_group() -> None:
    world, answer = ask(numa_network, f"{PORTS.format(4)}{NIC}&group_policy=none", 36)
    names = world.names()
    (request,) = answer["allocation_requests"]
    assert {
        suffix: [names[uuid] for uuid in uuids] for suffix, uuids in request["mappings"].items()
    } == {"": ["cn2"], "_PORT1": ["pf1_1"], "_PORT2": ["pf1_2"], "_NIC": ["nic1"]}


@pytest.mark.parametrize(
    ("minor", "shown"),
    [
        (16, {"resources": {"VCPU": {"capacity": 384, "used": 0}}}),
        (26, {"resources": {"VCPU": {"capacity": 384, "used": 0}}, "traits": []}),
        (
            28,
            {
                "resources": {
                    "VCPU": {"capacity": 384, "used": 0},
                    "MEMORY_MB": {"capacity": 196608, "used": 0},
                    "DISK_GB": {"capacity": 1900, "used": 0},
                },
                "traits": [],
            },
        ),
        (
            29,
            {
                "resources": {
                    "VCPU": {"capacity": 384, "used": 0},
                    "MEMORY_MB": {"capacity": 196608, "used": 0},
                    "DISK_GB": {"capacity": 1900, "used": 0},
                },
                "traits": [],
                "parent_provider_uuid": None,
                "root_provider_uuid": uuid_of("cn2"),
            },
        ),
    ],
)
def test_summaries_show_what_the_version_knows(minor: int, shown: dict[str, Any]) -> None:
    _, answer = ask(shared_storage, "resources=VCPU:1", minor)
    assert answer["provider_summaries"][uuid_of("cn2")] == shown


@pytest.mark.parametrize(
    ("minor", "request_of_cn2"),
    [
        (
            11,
            {
                "allocations": [
                    {"resource_provider": {"uuid": uuid_of("cn2")}, "resources": {"VCPU": 1}}
                ]
            },
        ),
        (12, {"allocations": {uuid_of("cn2"): {"resources": {"VCPU": 1}}}}),
        (
            34,
            {
                "allocations": {uuid_of("cn2"): {"resources": {"VCPU": 1}}},
                "mappings": {"": [uuid_of("cn2")]},
            },
        ),
    ],
)
def test_requests_have_the_form_of_the_version(minor: int, request_of_cn2: dict[str, Any]) -> None:
    _, answer = ask(shared_storage, "resources=VCPU:1", minor)
    assert request_of_cn2 in answer["allocation_requests"]


STRICT = (
    ("required_B=!CUSTOM_X", 0, 2),
    ("in_tree_B={r}", 0, 2),
    ("required_B=CUSTOM_T&in_tree_B={other}", 1, 0),
)


@pytest.mark.parametrize(("text", "strict", "ours"), STRICT)
def test_strict_reference_repeats_its_defects_of_groups_without_resources(
    text: str, strict: int, ours: int
) -> None:
    lines = (*child, ("other", "", "", "", "CUSTOM_X"))
    for is_strict, expected in ((True, strict), (False, ours)):
        options = SearchOptions(strict_reference=is_strict)
        _, answer = ask(small(*lines), f"{resourceless}&{text}", 36, options)
        assert counts(answer)[0] == expected


def test_many_groups_are_encoded_as_they_share_providers() -> None:
    groups = [f"_{number}" for number in range(18)]
    lines = [("r", "", "", "", "")]
    lines += [(f"d{number}", "r", "SRIOV_NET_VF=18", "", "") for number in range(3)]
    asked = "&".join(f"resources{suffix}=SRIOV_NET_VF:1" for suffix in groups)
    _, answer = ask(small(*lines), f"{asked}&group_policy=none&limit=3000", 36)
    contents = set()
    for request in answer["allocation_requests"]:
        assert list(request["mappings"]) == groups
        held: dict[str, int] = {}
        for (uuid,) in request["mappings"].values():
            held[uuid] = held.get(uuid, 0) + 1
        assert request["allocations"] == {
            uuid: {"resources": {"SRIOV_NET_VF": amount}} for uuid, amount in held.items()
        }
        contents.add(json.dumps(request["mappings"], sort_keys=True))
    assert len(contents) == len(answer["allocation_requests"]) == 3000
