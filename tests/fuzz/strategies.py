"""Change requests: valid ones about the region's commitments, and all ways to spoil them."""

from __future__ import annotations

import itertools
import json
import random
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

from commitments.domain.statuses import CommitmentStatus
from tests.fuzz.region import PROJECTS, RESOURCES, ZONES, body_of, commitment_uuid

Entry = dict[str, Any]
Body = dict[str, Any]
ByProject = dict[str, dict[str, list[Entry]]]

KNOWN_UUIDS = [commitment_uuid(number) for number in range(24)]
FRESH_UUIDS = [f"f7e5400d-{number:04d}" for number in range(6)]
LIVE = ("planned", "pending", "guaranteed", "confirmed")
STATUSES = (*list(CommitmentStatus), None)
TIMES = (
    "2036-01-01T00:00:00Z",
    "2027-06-30T23:59:59.999999999+05:30",
    "2020-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
)
BAD_TIMES = (
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59-12:00",
    "0001-01-01T00:00:00+14:00",
    "2030-12-31T23:59:60Z",
    "2030-02-30T00:00:00Z",
    "10000-01-01T00:00:00Z",
    "2030-01-01T00:00:00",
    "2030-01-01 00:00:00Z",
    "2030-01-01T24:00:00Z",
    "2030-01-01T00:00:00+99:99",
    "٢٠٣٠-01-01T00:00:00Z",
    "2030-01-01T00:00:00." + "9" * 400 + "Z",
    "now",
)
BIG = (2**31, 2**53 + 1, 2**62, 2**63 - 1)
TOO_BIG = (2**63, 2**64 - 1, 2**64, 10**40)
JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    -0.0,
    1e300,
    float("nan"),
    float("inf"),
    *BIG,
    *TOO_BIG,
    *(-number for number in TOO_BIG),
    "",
    " ",
    "0",
    "\x00",
    "a\x00b",
    "\ud800",
    "x\udfffy",
    "\u2028\u202e\ufeff",
    "💥" * 20,
    "é" * 64,
    "x" * 65,
    "x" * 300,
    "x" * 70_000,
    "'; DROP TABLE commitments_commitment; --",
    "%s %(name)s {0} ${x}",
    *TIMES,
    *BAD_TIMES,
    [],
    {},
    [[]],
    [None],
    {"": None},
    {"\x00": {}},
    {"\ud800": {}},
    "confirmed",
    "any",
    "total",
)

amounts = st.one_of(st.integers(0, 9), st.integers(10, 60), st.sampled_from(BIG))
times = st.sampled_from(TIMES)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    entry: Entry = {
        "uuid": draw(st.sampled_from(KNOWN_UUIDS + FRESH_UUIDS)),
        "oldStatus": draw(st.sampled_from(STATUSES)),
        "newStatus": draw(st.sampled_from(STATUSES)),
        "amount": draw(amounts),
        "expiresAt": draw(st.one_of(st.just(TIMES[0]), times)),
    }
    if draw(st.booleans()):
        entry["confirmBy"] = draw(times)
    if draw(st.integers(0, 4)) == 0:
        entry["oldExpiresAt"] = draw(times)
    return entry


def entry_of(uuid: str, old: str | None, new: str | None, amount: int) -> Entry:
    return {
        "uuid": uuid,
        "oldStatus": old,
        "newStatus": new,
        "amount": amount,
        "expiresAt": TIMES[0],
    }


@st.composite
def anything(draw: st.DrawFn) -> ByProject:
    """Any well-formed entries anywhere: mostly contradictory or untrue."""
    resources = st.sampled_from((*RESOURCES, "hw_version_gone_ram", "hw_version_hana_1_instances"))
    changesets = st.dictionaries(resources, st.lists(entries(), max_size=3), max_size=2)
    projects = st.sampled_from((*PROJECTS, "проект", "p" * 64))
    return draw(st.dictionaries(projects, changesets, max_size=3))


@st.composite
def creations(draw: st.DrawFn) -> ByProject:
    """New commitments in any status, small enough that some fit and some do not."""
    by_project: ByProject = {}
    uuids = draw(st.lists(st.sampled_from(FRESH_UUIDS), unique=True, min_size=1, max_size=5))
    for uuid in uuids:
        project, resource = draw(st.sampled_from(PROJECTS)), draw(st.sampled_from(RESOURCES))
        entry = entry_of(uuid, None, draw(st.sampled_from(LIVE)), draw(st.integers(0, 50)))
        by_project.setdefault(project, {}).setdefault(resource, []).append(entry)
    return by_project


@st.composite
def successions(draw: st.DrawFn) -> ByProject:
    """Splits, merges and renewals: some end, others begin with the same or another sum."""
    project, resource = draw(st.sampled_from(PROJECTS)), draw(st.sampled_from(RESOURCES))
    status = draw(st.sampled_from(LIVE))
    ending = draw(st.lists(st.sampled_from(KNOWN_UUIDS), unique=True, min_size=1, max_size=3))
    starting = draw(st.lists(st.sampled_from(FRESH_UUIDS), unique=True, min_size=1, max_size=3))
    final = draw(st.sampled_from(("superseded", "expired", None)))
    before = [draw(st.integers(0, 9)) for _ in ending]
    total = sum(before) + draw(st.integers(-2, 2))
    cuts = sorted(draw(st.integers(0, max(0, total))) for _ in starting[1:])
    edges = [0, *cuts, max(0, total)]
    after = [right - left for left, right in itertools.pairwise(edges)]
    return {
        project: {
            resource: [
                *(entry_of(u, status, final, n) for u, n in zip(ending, before, strict=True)),
                *(entry_of(u, None, status, n) for u, n in zip(starting, after, strict=True)),
            ]
        }
    }


@st.composite
def moves(draw: st.DrawFn) -> ByProject:
    """One uuid leaves a project or resource and arrives in another, in either order."""
    uuid, amount = draw(st.sampled_from(KNOWN_UUIDS)), draw(st.integers(0, 20))
    source = draw(st.tuples(st.sampled_from(PROJECTS), st.sampled_from(RESOURCES)))
    target = draw(st.tuples(st.sampled_from(PROJECTS), st.sampled_from(RESOURCES)))
    by_project: ByProject = {}
    old, new = draw(st.sampled_from(LIVE)), draw(st.sampled_from(LIVE))
    halves = [
        (source, entry_of(uuid, old, None, amount)),
        (target, entry_of(uuid, None, new, amount)),
    ]
    for (project, resource), entry in draw(st.permutations(halves)):
        by_project.setdefault(project, {}).setdefault(resource, []).append(entry)
    return by_project


@st.composite
def transitions(draw: st.DrawFn) -> ByProject:
    """Known commitments change status, amount or end where they are, or are deleted."""
    project, resource = draw(st.sampled_from(PROJECTS)), draw(st.sampled_from(RESOURCES))
    uuids = draw(st.lists(st.sampled_from(KNOWN_UUIDS), unique=True, min_size=1, max_size=4))
    changes = []
    for uuid in uuids:
        old, new = draw(st.sampled_from(LIVE)), draw(st.sampled_from(STATUSES))
        entry = entry_of(uuid, old, new, draw(st.integers(0, 40)))
        if draw(st.booleans()):
            entry |= {"expiresAt": draw(times), "oldExpiresAt": TIMES[0]}
        changes.append(entry)
    return {project: {resource: changes}}


@st.composite
def change_bodies(draw: st.DrawFn, version: int) -> Body:
    """A well-formed request, mostly with totals that agree with its commitments."""
    by_project = draw(st.one_of(anything(), creations(), successions(), moves(), transitions()))
    zone = draw(st.sampled_from((*ZONES, *ZONES, "az-nowhere", "зона")))
    is_dry_run = draw(st.integers(0, 4)) == 0
    body = body_of(by_project, zone=zone, is_dry_run=is_dry_run, info_version=version)
    if draw(st.integers(0, 3)) == 0:
        for project in body["byProject"].values():
            for changeset in project["byResource"].values():
                for name in ("totalConfirmedBefore", "totalConfirmedAfter"):
                    changeset[name] = draw(amounts)
    return body


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every node below ``node``."""
    found: list[tuple[Any, ...]] = []
    children: Any = ()
    if isinstance(node, dict):
        children = node.items()
    elif isinstance(node, list):
        children = enumerate(node)
    for key, child in children:
        found.append((*path, key))
        found += places(child, (*path, key))
    return found


@st.composite
def spoiled_bodies(draw: st.DrawFn, version: int) -> Body:
    """A request with one to three nodes replaced, dropped, renamed or added."""
    body = deepcopy(draw(change_bodies(version)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(body)))
        parent: Any = body
        for step in path[:-1]:
            parent = parent[step]
        deed = draw(st.sampled_from(("replace", "replace", "replace", "drop", "rename", "add")))
        junk = deepcopy(draw(st.sampled_from(JUNK)))
        if deed == "replace" or isinstance(parent, list):
            parent[path[-1]] = junk
        elif deed == "drop":
            del parent[path[-1]]
        elif deed == "rename":
            parent[str(junk)] = parent.pop(path[-1])
        else:
            parent[str(junk)] = junk
    return body


@st.composite
def raw_bodies(draw: st.DrawFn, version: int) -> bytes:
    """The bytes of a request, damaged below the level of JSON."""
    text = json.dumps(draw(change_bodies(version)))
    rng = random.Random(draw(st.integers(0, 2**32)))  # noqa: S311 - reproducible, nothing secret
    at = rng.randrange(len(text))
    deed = draw(st.integers(0, 8))
    raw = text.encode()
    damaged = (
        raw[:at],
        raw[:at] + rng.randbytes(3) + raw[at:],
        raw[:at] + raw[at + 1 :],
        b"\xef\xbb\xbf" + raw,
        text.encode("utf-16"),
        raw + b"{}",
        text.replace('"az"', '"dryRun": true, "az"', 1).encode(),
        text.replace('"byProject": {', '"byProject": null, "byProject": {', 1).encode(),
        (b'{"a":' * 1200) + raw + (b"}" * 1200),
    )
    return damaged[deed]


def encoded(body: Body) -> bytes:
    """Return JSON as a careless client writes it: NaN, huge numbers and half surrogates as is."""
    return json.dumps(body).encode()
