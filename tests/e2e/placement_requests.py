"""Random requests to a Placement API over a small world, most of them valid.

A step says in symbols what to ask; the generations it needs are looked up when it is sent, so that
sequences of writes get somewhere, and some are made stale on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from hypothesis import strategies as st

NEWEST = 39
PROVIDERS = [f"0000000{number}-aaaa-4aaa-8aaa-00000000000{number}" for number in range(5)]
CONSUMERS = [f"0000000{number}-cccc-4ccc-8ccc-00000000000{number}" for number in range(3)]
AGGREGATES = [f"0000000{number}-eeee-4eee-8eee-00000000000{number}" for number in range(3)]
NOBODY = "ffffffff-ffff-4fff-8fff-ffffffffffff"
NAMES = ["first", "second", "third", "fourth", "fifth"]
CLASSES = ["VCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_GOLD"]
TRAITS = ["HW_CPU_X86_AVX", "CUSTOM_FAST", "MISC_SHARES_VIA_AGGREGATE"]
UNKNOWN_CLASS = "CUSTOM_NEVER"
UNKNOWN_TRAIT = "CUSTOM_UNHEARD"
TYPES = ["INSTANCE", "MIGRATION"]
PROJECTS = ["project-a", "project-b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to ask, before generations are known.

    Attributes:
        method: HTTP method.
        path: Path and query.
        minor: Second number of the version.
        body: Body without generations; None for none.
        provider: Uuid whose generation goes into the body; empty for none.
        stale: How far that generation, and those of consumers, are off.
        consumers: Uuids whose generations go into the body.
    """

    method: str
    path: str
    minor: int
    body: Any = None
    provider: str = ""
    stale: int = 0
    consumers: tuple[str, ...] = ()


def mostly(likely: list[str], *unlikely: str) -> st.SearchStrategy[str]:
    """Draw from the likely words, now and then from the others."""
    return st.sampled_from([*likely, *likely, *likely, *unlikely])


provider_ids = mostly(PROVIDERS, NOBODY)
consumer_ids = st.sampled_from(CONSUMERS)
classes = mostly(CLASSES, UNKNOWN_CLASS)
traits = mostly(TRAITS, UNKNOWN_TRAIT)
staleness = st.sampled_from([0, 0, 0, 0, 0, 1])
versions = st.integers(0, NEWEST) | st.just(NEWEST)


def since(minor: int) -> st.SearchStrategy[int]:
    """Draw a version from ``minor`` on, rarely one before."""
    recent = st.integers(minor, NEWEST) | st.just(NEWEST)
    return st.one_of(recent, recent, recent, st.integers(0, NEWEST))


@st.composite
def inventories(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the fields of an inventory, most of them possible."""
    fields: dict[str, Any] = {"total": draw(st.sampled_from([1, 4, 8, 16, 16, 0]))}
    optional: Mapping[str, st.SearchStrategy[Any]] = {
        "reserved": st.sampled_from([0, 1, 2, 4, 16, -1]),
        "min_unit": st.sampled_from([1, 2]),
        "max_unit": st.sampled_from([2, 8, 16]),
        "step_size": st.sampled_from([1, 2]),
        "allocation_ratio": st.sampled_from([1.0, 1.5, 2.0, 16.0]),
    }
    for name, values in optional.items():
        if draw(st.integers(0, 3)) == 0:
            fields[name] = draw(values)
    if draw(st.integers(0, 30)) == 0:
        fields["colour"] = "blue"
    return fields


@st.composite
def provider_writes(draw: st.DrawFn) -> Step:
    """Draw the creation, change or deletion of a provider."""
    number = draw(st.integers(0, len(PROVIDERS) - 1))
    uuid, minor = PROVIDERS[number], draw(since(14))
    kind = draw(st.sampled_from(["create", "create", "create", "rename", "move", "delete"]))
    path = f"/resource_providers/{uuid}"
    if kind == "delete":
        return Step(method="DELETE", path=path, minor=minor)
    body: dict[str, Any] = {"name": draw(mostly([NAMES[number]], *NAMES))}
    if kind == "create":
        body["uuid"] = uuid
        path = "/resource_providers"
    if draw(st.booleans()):
        body["parent_provider_uuid"] = draw(mostly(PROVIDERS, NOBODY) | st.none())
    return Step(method="POST" if kind == "create" else "PUT", path=path, minor=minor, body=body)


@st.composite
def inventory_writes(draw: st.DrawFn) -> Step:
    """Draw a write of one or all inventories of a provider."""
    uuid, minor = draw(provider_ids), draw(versions)
    path = f"/resource_providers/{uuid}/inventories"
    kind = draw(st.sampled_from(["all", "all", "all", "add", "one", "delete one", "delete all"]))
    if kind == "delete all":
        return Step(method="DELETE", path=path, minor=minor)
    name, stale = draw(classes), draw(staleness)
    if kind == "delete one":
        return Step(method="DELETE", path=f"{path}/{name}", minor=minor)
    if kind == "add":
        body = {"resource_class": name, **draw(inventories())}
        return Step(method="POST", path=path, minor=minor, body=body)
    if kind == "one":
        body = draw(inventories())
        return Step(
            method="PUT", path=f"{path}/{name}", minor=minor, body=body, provider=uuid, stale=stale
        )
    body = {"inventories": draw(st.dictionaries(classes, inventories(), max_size=3))}
    return Step(method="PUT", path=path, minor=minor, body=body, provider=uuid, stale=stale)


@st.composite
def link_writes(draw: st.DrawFn) -> Step:
    """Draw a write of a provider's traits or aggregates."""
    uuid, stale = draw(provider_ids), draw(staleness)
    path = f"/resource_providers/{uuid}"
    if draw(st.booleans()):
        minor = draw(since(1))
        listed = draw(st.lists(st.sampled_from(AGGREGATES), max_size=2))
        if minor < 19:
            return Step(method="PUT", path=f"{path}/aggregates", minor=minor, body=listed)
        body = {"aggregates": listed}
        return Step(
            method="PUT",
            path=f"{path}/aggregates",
            minor=minor,
            body=body,
            provider=uuid,
            stale=stale,
        )
    minor = draw(since(6))
    if draw(st.integers(0, 5)) == 0:
        return Step(method="DELETE", path=f"{path}/traits", minor=minor)
    body = {"traits": draw(st.lists(traits, max_size=3))}
    return Step(
        method="PUT", path=f"{path}/traits", minor=minor, body=body, provider=uuid, stale=stale
    )


@st.composite
def name_writes(draw: st.DrawFn) -> Step:
    """Draw the creation or deletion of a custom name."""
    minor = draw(since(7))
    kind, names = draw(
        st.sampled_from(
            [
                ("traits", ["CUSTOM_FAST", "CUSTOM_FAST", "HW_CPU_X86_AVX", "fast"]),
                ("resource_classes", ["CUSTOM_GOLD", "CUSTOM_GOLD", "VCPU", "gold"]),
            ]
        )
    )
    method = draw(st.sampled_from(["PUT", "PUT", "PUT", "DELETE", "GET"]))
    name = draw(st.sampled_from(names))
    if kind == "resource_classes" and method == "PUT" and minor < 7:
        return Step(
            method=method, path=f"/{kind}/{name}", minor=minor, body={"name": "CUSTOM_OTHER"}
        )
    return Step(method=method, path=f"/{kind}/{name}", minor=minor)


@st.composite
def holdings(draw: st.DrawFn, *, may_be_empty: bool) -> dict[str, dict[str, int]]:
    """Draw what a consumer wants: provider -> class -> amount."""
    amounts = st.dictionaries(
        classes, st.sampled_from([1, 2, 2, 4, 8, 0, 40]), min_size=1, max_size=2
    )
    return draw(
        st.dictionaries(provider_ids, amounts, min_size=0 if may_be_empty else 1, max_size=2)
    )


def allocation_body(
    draw: st.DrawFn, minor: int, held: Mapping[str, Mapping[str, int]]
) -> dict[str, Any]:
    """Return the body of one consumer in the form of a version, without its generation."""
    if minor < 12:
        listed = [
            {"resource_provider": {"uuid": uuid}, "resources": dict(amounts)}
            for uuid, amounts in held.items()
        ]
        body: dict[str, Any] = {"allocations": listed}
    else:
        body = {"allocations": {uuid: {"resources": dict(each)} for uuid, each in held.items()}}
    if minor >= 8:
        body |= {"project_id": draw(st.sampled_from(PROJECTS)), "user_id": "user-a"}
    if minor >= 34 and held and draw(st.integers(0, 3)) == 0:
        body["mappings"] = {"": sorted(held)}
    if minor >= 38:
        body["consumer_type"] = draw(st.sampled_from(TYPES))
    return body


@st.composite
def allocation_writes(draw: st.DrawFn) -> Step:
    """Draw a write of what one or two consumers hold."""
    kind = draw(st.sampled_from(["put", "put", "put", "post", "delete"]))
    consumer, stale = draw(consumer_ids), draw(staleness)
    path = f"/allocations/{consumer}"
    if kind == "delete":
        return Step(method="DELETE", path=path, minor=draw(versions))
    if kind == "put":
        minor = draw(versions)
        held = draw(holdings(may_be_empty=minor >= 28))
        return Step(
            method="PUT",
            path=path,
            minor=minor,
            body=allocation_body(draw, minor, held),
            consumers=(consumer,) if minor >= 28 else (),
            stale=stale,
        )
    minor = draw(since(13))
    named = draw(st.lists(consumer_ids, min_size=1, max_size=2, unique=True))
    dialect = max(minor, 13)
    body = {
        each: allocation_body(draw, dialect, draw(holdings(may_be_empty=True))) for each in named
    }
    return Step(
        method="POST",
        path="/allocations",
        minor=minor,
        body=body,
        consumers=tuple(named) if dialect >= 28 else (),
        stale=stale,
    )


@st.composite
def group_terms(draw: st.DrawFn, suffix: str, minor: int) -> list[tuple[str, str]]:
    """Draw the query terms of one request group."""
    wanted = draw(st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 6), min_size=1))
    terms = [(f"resources{suffix}", ",".join(f"{name}:{n}" for name, n in wanted.items()))]
    if minor >= 17 and draw(st.integers(0, 2)) == 0:
        prefix = "!" if minor >= 22 and draw(st.booleans()) else ""
        terms.append((f"required{suffix}", prefix + draw(traits)))
    if minor >= 21 and draw(st.integers(0, 2)) == 0:
        listed = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=2, unique=True))
        prefix = "!" if minor >= 32 and draw(st.booleans()) else ""
        words = f"{prefix}in:{','.join(listed)}" if len(listed) > 1 else prefix + listed[0]
        terms.append((f"member_of{suffix}", words))
    if minor >= 31 and draw(st.integers(0, 5)) == 0:
        terms.append((f"in_tree{suffix}", draw(st.sampled_from(PROVIDERS))))
    return terms


@st.composite
def candidate_reads(draw: st.DrawFn) -> Step:
    """Draw a query for allocation candidates with up to three groups."""
    minor = draw(since(10))
    count = draw(st.sampled_from([0, 0, 1, 2])) if minor >= 25 else 0
    terms = draw(group_terms("", minor)) if count == 0 or draw(st.booleans()) else []
    for number in range(1, count + 1):
        terms += draw(group_terms(str(number), minor))
    if count > 1 or (count and draw(st.booleans())):
        terms.append(("group_policy", draw(st.sampled_from(["none", "isolate"]))))
    if minor >= 35 and draw(st.integers(0, 5)) == 0:
        terms.append(("root_required", draw(traits)))
    if minor >= 36 and count == 2 and draw(st.booleans()):
        terms.append(("same_subtree", "1,2"))
    return Step(method="GET", path=f"/allocation_candidates?{urlencode(terms)}", minor=minor)


@st.composite
def reads(draw: st.DrawFn) -> Step:
    """Draw a read of anything else."""
    uuid, minor = draw(provider_ids), draw(versions)
    base = f"/resource_providers/{uuid}"
    simple = [
        base,
        f"{base}/inventories",
        f"{base}/inventories/{draw(classes)}",
        f"{base}/usages",
        f"{base}/aggregates",
        f"{base}/traits",
        f"{base}/allocations",
        f"/allocations/{draw(consumer_ids)}",
        f"/usages?project_id={draw(st.sampled_from(PROJECTS))}",
        f"/usages?project_id={draw(st.sampled_from(PROJECTS))}&consumer_type="
        + draw(st.sampled_from(["all", "unknown", "INSTANCE", "MIGRATION"])),
        "/traits?name=startswith:CUSTOM_",
        "/traits?associated=true",
        "/nowhere",
        "/usages",
    ]
    return Step(method="GET", path=draw(st.sampled_from(simple)), minor=minor)


@st.composite
def provider_lists(draw: st.DrawFn) -> Step:
    """Draw a list of providers with filters."""
    minor = draw(versions)
    terms: list[tuple[str, str]] = []
    optional: list[tuple[str, Callable[[], str]]] = [
        ("name", lambda: draw(st.sampled_from(NAMES))),
        ("uuid", lambda: draw(mostly(PROVIDERS, "nonsense"))),
        ("member_of", lambda: draw(st.sampled_from([*AGGREGATES, f"in:{','.join(AGGREGATES)}"]))),
        ("resources", lambda: f"{draw(classes)}:{draw(st.integers(0, 6))}"),
        ("in_tree", lambda: draw(provider_ids)),
        ("required", lambda: draw(st.sampled_from(["", "!"])) + draw(traits)),
        ("colour", lambda: "blue"),
    ]
    for name, value in optional:
        if draw(st.integers(0, 4)) == 0:
            terms.append((name, value()))
    query = f"?{urlencode(terms)}" if terms else ""
    return Step(method="GET", path=f"/resource_providers{query}", minor=minor)


@st.composite
def reshapes(draw: st.DrawFn) -> Step:
    """Draw a reshape of two providers and one consumer."""
    minor = draw(since(30))
    # The reference does not compare reserved with total here (spec 5.7).
    fields = st.builds(lambda total: {"total": total}, st.sampled_from([4, 8, 16]))
    sets = st.dictionaries(st.sampled_from(CLASSES), fields, max_size=3)
    moved = draw(st.dictionaries(provider_ids, sets, min_size=1, max_size=2))
    consumer = draw(consumer_ids)
    held = draw(holdings(may_be_empty=False))
    allocations = {consumer: allocation_body(draw, max(minor, 28), held)}
    body = {
        "inventories": {uuid: {"inventories": each} for uuid, each in moved.items()},
        "allocations": allocations if draw(st.booleans()) else {},
    }
    return Step(
        method="POST",
        path="/reshaper",
        minor=minor,
        body=body,
        consumers=(consumer,) if body["allocations"] else (),
        stale=draw(staleness),
    )


@st.composite
def worlds(draw: st.DrawFn) -> list[Step]:
    """Draw the writes that make up a small world: a tree, a second root, names, inventories."""
    steps = [
        Step(method="PUT", path="/traits/CUSTOM_FAST", minor=NEWEST),
        Step(method="PUT", path="/resource_classes/CUSTOM_GOLD", minor=NEWEST),
    ]
    for number, uuid in enumerate(PROVIDERS[: draw(st.integers(2, 5))]):
        body: dict[str, Any] = {"name": NAMES[number], "uuid": uuid}
        if number and draw(st.booleans()):
            body["parent_provider_uuid"] = draw(st.sampled_from(PROVIDERS[:number]))
        steps.append(Step(method="POST", path="/resource_providers", minor=NEWEST, body=body))
        base = f"/resource_providers/{uuid}"
        owned = draw(st.dictionaries(st.sampled_from(CLASSES), inventories(), max_size=3))
        marks = draw(st.lists(st.sampled_from(TRAITS), max_size=2, unique=True))
        groups = draw(st.lists(st.sampled_from(AGGREGATES), max_size=2, unique=True))
        steps += [
            Step(method="PUT", path=f"{base}/{part}", minor=NEWEST, body=content, provider=uuid)
            for part, content in (
                ("inventories", {"inventories": owned}),
                ("traits", {"traits": marks}),
                ("aggregates", {"aggregates": groups}),
            )
            if next(iter(content.values()))
        ]
    return steps


anything = st.one_of(
    provider_writes(),
    inventory_writes(),
    link_writes(),
    name_writes(),
    allocation_writes(),
    allocation_writes(),
    allocation_writes(),
    candidate_reads(),
    candidate_reads(),
    candidate_reads(),
    provider_lists(),
    reads(),
    reads(),
    reshapes(),
)
sequences = st.lists(anything, min_size=4, max_size=20)
