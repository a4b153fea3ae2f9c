from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from commitments.models import SyncRun
from hosts.region.node import RegionFileError
from hosts.region.parse import RegionFileParser
from hosts.region.registry import Shape
from tests.hosts.region_files import Json, load, row_counts, small_region, write_file


def put(*path: str | int, to: Any) -> Callable[[Json], None]:
    def edit(content: Json) -> None:
        target: Any = content
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = to

    return edit


def drop(*path: str | int) -> Callable[[Json], None]:
    def edit(content: Json) -> None:
        target: Any = content
        for key in path[:-1]:
            target = target[key]
        del target[path[-1]]

    return edit


def twice(*path: str) -> Callable[[Json], None]:
    def edit(content: Json) -> None:
        target: Any = content
        for key in path:
            target = target[key]
        target.append(target[0])

    return edit


SERVER = ("compute", "servers", 0)
MALFORMED = [
    ("server without flavor", drop(*SERVER, "flavor"), "compute.servers[0].flavor: missing"),
    (
        "server with empty flavor",
        put(*SERVER, "flavor", to={}),
        "compute.servers[0].flavor: missing",
    ),
    ("server without id", drop(*SERVER, "id"), "compute.servers[0].id: missing"),
    ("server id of wrong type", put(*SERVER, "id", to=7), "compute.servers[0].id: must be a text"),
    ("server id null", put(*SERVER, "id", to=None), "compute.servers[0].id: must be a text"),
    ("server id empty", put(*SERVER, "id", to=""), "compute.servers[0].id: must not be empty"),
    ("server id too long", put(*SERVER, "id", to="x" * 65), "compute.servers[0].id: longer"),
    ("server id with NUL", put(*SERVER, "id", to="a\0"), "compute.servers[0]: contains a NUL"),
    ("key with NUL", put(*SERVER, "metadata", to={"\0": ""}), "compute.servers[0]: contains a NUL"),
    ("server is a text", put(*SERVER, to="v1"), "compute.servers[0]: must be an object"),
    ("vcpus negative", put(*SERVER, "flavor", "vcpus", to=-1), "servers[0].flavor.vcpus: -1"),
    ("vcpus too large", put(*SERVER, "flavor", "vcpus", to=2**31), "flavor.vcpus: 2147483648"),
    ("vcpus a fraction", put(*SERVER, "flavor", "vcpus", to=1.5), "must be a whole number"),
    ("vcpus a text", put(*SERVER, "flavor", "vcpus", to="2"), "must be a whole number"),
    ("vcpus true", put(*SERVER, "flavor", "vcpus", to=True), "must be a whole number"),
    ("ram beyond 64 bits", put(*SERVER, "flavor", "ram", to=2**70), "number out of range"),
    ("ram beyond bytes", put(*SERVER, "flavor", "ram", to=2**44), "flavor.ram: 17592186044416"),
    ("bad time", put(*SERVER, "created", to="yesterday"), "created: is not an ISO 8601 time"),
    (
        "time before all time",
        put(*SERVER, "created", to="0001-01-01T00:00:00+14:00"),
        "created: is not a time that can be stored",
    ),
    ("image a number", put(*SERVER, "image", to=5), "compute.servers[0].image: must be an object"),
    ("metadata nested", put(*SERVER, "metadata", to={"a": {}}), "metadata.a: must be a text"),
    ("servers an object", put("compute", "servers", to={}), "compute.servers: must be a list"),
    ("compute a list", put("compute", to=[]), "compute: must be an object"),
    ("identity null", put("identity", to=None), "identity: must be an object"),
    ("server twice", twice("compute", "servers"), "compute.servers[1].id: server 'v1' is defined"),
    ("flavor twice", twice("compute", "flavors"), "compute.flavors[1].id: flavor 'f1' is defined"),
    ("host twice", twice("compute", "hypervisors"), "compute.hypervisors[1].id: hypervisor 'h1'"),
    ("aggregate twice", twice("compute", "aggregates"), "compute.aggregates[1].uuid: aggregate"),
    ("project twice", twice("identity", "projects"), "identity.projects[1].id: project 'p1'"),
    ("quota twice", twice("limes", "quotas"), "limes.quotas[1]: quota 'p1/az-a/hw_version_gp_ram'"),
    ("commitment twice", twice("limes", "commitments"), "limes.commitments[1].id: commitment"),
    ("rule twice", twice("headroom", "flavor_group_rules"), "headroom.flavor_group_rules[1]: "),
    ("policy twice", twice("headroom", "failover_policies"), "failover_policies[1].flavor"),
    ("provider twice", twice("placement", "resource_providers"), "resource_providers[1].uuid"),
    (
        "host without service",
        drop("compute", "hypervisors", 0, "service"),
        "compute.hypervisors[0].service: missing",
    ),
    (
        "host without name",
        drop("compute", "hypervisors", 0, "hypervisor_hostname"),
        "compute.hypervisors[0].hypervisor_hostname: missing",
    ),
    (
        "aggregate without metadata",
        drop("compute", "aggregates", 0, "metadata"),
        "compute.aggregates[0].metadata: missing",
    ),
    (
        "aggregate host of wrong type",
        put("compute", "aggregates", 0, "hosts", to=["a", 1]),
        "compute.aggregates[0].hosts[1]: must be a text",
    ),
    (
        "ratio zero",
        put(
            "placement",
            "resource_providers",
            0,
            "inventories",
            "inventories",
            "VCPU",
            "allocation_ratio",
            to=0,
        ),
        "inventories.inventories.VCPU.allocation_ratio: 0",
    ),
    (
        "provider without inventories",
        drop("placement", "resource_providers", 0, "inventories"),
        "placement.resource_providers[0].inventories: missing",
    ),
    (
        "amount negative",
        put("limes", "commitments", 0, "amount", to=-1),
        "limes.commitments[0].amount: -1",
    ),
    (
        "commitment without uuid key",
        drop("limes", "commitments", 0, "uuid"),
        "limes.commitments[0].uuid: missing",
    ),
    (
        "expiry beyond all calendars",
        put("limes", "commitments", 0, "expires_at", to=10**15),
        "limes.commitments[0].expires_at: 1000000000000000",
    ),
    ("quota below -1", put("limes", "quotas", 0, "quota", to=-2), "limes.quotas[0].quota: -2"),
    (
        "unit out of range",
        put("headroom", "flavor_groups", "gp", "ram_unit_gib", to=2**40),
        "headroom.flavor_groups.gp.ram_unit_gib",
    ),
    (
        "flag of wrong type",
        put("headroom", "flavor_groups", "gp", "ram", "handles_commitments", to="yes"),
        "headroom.flavor_groups.gp.ram.handles_commitments: must be true or false",
    ),
    (
        "settings for a pattern",
        put("headroom", "flavor_groups", to={"g*": {}}),
        "headroom.flavor_groups.g*: ",
    ),
    (
        "policy count negative",
        put("headroom", "failover_policies", 0, "count", to=-1),
        "headroom.failover_policies[0].count: -1",
    ),
    ("region of wrong type", put("about", "region", to=5), "about.region: must be a text"),
]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("edit", "problem"), [pytest.param(e, p, id=name) for name, e, p in MALFORMED]
)
def test_a_malformed_file_names_file_and_path_and_changes_nothing(
    tmp_path: Path, edit: Callable[[Json], None], problem: str
) -> None:
    content = small_region()
    edit(content)
    path = write_file(tmp_path, content, "bad.json")
    before = row_counts()
    with pytest.raises(CommandError) as caught:
        call_command("import_region", str(path))
    assert caught.value.returncode == 2
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)
    assert row_counts() == before | {"commitments_syncrun": 1}
    assert problem in SyncRun.objects.get().message


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        pytest.param(b"", "is not valid JSON", id="empty"),
        pytest.param(b"[]", "must hold a JSON object", id="list"),
        pytest.param(b"{", "is not valid JSON", id="unfinished"),
        pytest.param(b'{"compute": {"servers": [{"id": "a"', "is not valid JSON", id="cut off"),
        pytest.param(b"{} {}", "is not valid JSON", id="two documents"),
        pytest.param(b'{"identity": {"domains": [{"id": "\xff"}]}}', "valid JSON", id="not UTF-8"),
        pytest.param(b'{"identity": {"domains": [NaN]}}', "is not valid JSON", id="NaN"),
        pytest.param(
            b'{"image": {"images": [{"id": ' + b"[" * 100 + b"]" * 100 + b"}]}}",
            "image.images[0]: is nested deeper than 64 levels",
            id="deep",
        ),
        pytest.param(
            b'{"limes": {"commitments": [{"amount": 1e999999}]}}',
            "limes.commitments[0]: contains a number out of range",
            id="huge number",
        ),
    ],
)
def test_text_that_is_no_region_is_refused(tmp_path: Path, raw: bytes, problem: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(raw)
    with pytest.raises(CommandError) as caught:
        call_command("import_region", str(path))
    assert caught.value.returncode == 2
    assert problem in str(caught.value)


@pytest.mark.django_db
def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"missing\.json: cannot be read"):
        call_command("import_region", str(tmp_path / "missing.json"))


@pytest.mark.django_db
def test_the_same_id_in_two_files_is_refused(tmp_path: Path) -> None:
    first = write_file(tmp_path, small_region(), "a.json")
    second = write_file(tmp_path, {"identity": small_region()["identity"]}, "b.json")
    with pytest.raises(RegionFileError, match=r"b.json: identity.domains\[0\].id: domain 'd1'"):
        load(first, second)


@pytest.mark.django_db
def test_the_same_map_key_in_two_files_is_refused(tmp_path: Path) -> None:
    first = write_file(tmp_path, small_region(), "a.json")
    groups: Json = {"headroom": {"flavor_groups": {"gp": {}}}}
    second = write_file(tmp_path, groups, "b.json")
    with pytest.raises(RegionFileError, match=r"b.json: headroom.flavor_groups.gp: "):
        load(first, second)


@pytest.mark.django_db
def test_extra_keys_are_ignored_everywhere(tmp_path: Path) -> None:
    content = small_region()
    content["unheard_of"] = {"a": [1, {"b": None}]}
    content["compute"]["hypervisors_2_53"] = [{"id": 1}]
    content["compute"]["servers"][0]["fault"] = {"deep": [[[1.5]]]}
    load(write_file(tmp_path, content))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text("abc \u00e9", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz"), inner, max_size=3),
    max_leaves=12,
)


@given(elements=st.lists(st.dictionaries(st.text("kl"), JSON_VALUES, max_size=3), max_size=4))
def test_elements_are_handed_over_as_they_stand(
    tmp_path_factory: pytest.TempPathFactory, elements: list[Json]
) -> None:
    path = write_file(
        tmp_path_factory.mktemp("parse"),
        {"other": [1], "a": {"skipped": {"x": [{}]}, "list": elements, "more": None}},
    )
    seen: list[Any] = []
    RegionFileParser(path, {"a.list": (Shape.LIST, lambda node: seen.append(node.fields))}).run()
    assert seen == elements
