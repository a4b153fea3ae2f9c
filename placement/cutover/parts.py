"""Parts of a cloud that change sides by themselves: hosts, and those of aggregates or zones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.prepared import fetch
from journal.errors import HeadroomError
from placement.clients.reference_api import Json
from placement.cutover.peer import Peer
from placement.domain.querystring import canonical_uuid
from placement.domain.transfer import Contents

SHOWN: Final = 20
#: Trees that change sides at once: so many are compared while writes are held.
TREES_AT_ONCE: Final = 8

#: Of each tree: id, UUID and name of its root, whether it is ours, how many providers.
TREES: Final = """
SELECT r.id, r.uuid::text, r.name, r.origin <> 'upstream',
       (SELECT count(*) FROM placement_provider m WHERE m.root_id = r.id)
  FROM placement_provider r
 WHERE r.parent_id IS NULL AND (
       %s::boolean
    OR r.name = ANY (%s::text[]) OR r.uuid = ANY (%s::uuid[])
    OR EXISTS (SELECT FROM placement_provider_aggregate l
                 JOIN placement_aggregate g ON g.id = l.aggregate_id
                 JOIN placement_provider m ON m.id = l.provider_id
                WHERE m.root_id = r.id AND g.uuid = ANY (%s::uuid[]))
    OR EXISTS (SELECT FROM hosts_host h
                WHERE (h.name = r.name OR h.openstack_id = r.uuid::text)
                  AND h.zone = ANY (%s::text[])))
 ORDER BY r.name
"""
#: Consumers of some trees: all, and those that hold something of the other side as well.
CONSUMERS: Final = """
SELECT count(*), count(*) FILTER (WHERE spans), coalesce(sum(rows), 0)
  FROM (SELECT a.consumer_id, bool_or(p.root_id <> ALL (%s::bigint[])) AS spans, count(*) AS rows
          FROM placement_allocation a JOIN placement_provider p ON p.id = a.provider_id
         GROUP BY a.consumer_id HAVING bool_or(p.root_id = ANY (%s::bigint[]))) c
"""
#: Providers outside of some trees that share something with a provider of them.
SHARING: Final = """
SELECT DISTINCT s.name FROM placement_provider s
  JOIN placement_provider_trait st ON st.provider_id = s.id
  JOIN placement_trait t ON t.id = st.trait_id AND t.name = 'MISC_SHARES_VIA_AGGREGATE'
  JOIN placement_provider_aggregate sl ON sl.provider_id = s.id
  JOIN placement_provider_aggregate ml ON ml.aggregate_id = sl.aggregate_id
  JOIN placement_provider m ON m.id = ml.provider_id
 WHERE m.root_id = ANY (%s::bigint[]) AND s.root_id <> ALL (%s::bigint[]) ORDER BY s.name
"""
PART: Final = """
SELECT p.uuid::text, p.name, p.generation, q.uuid::text
  FROM placement_provider p LEFT JOIN placement_provider q ON q.id = p.parent_id
 WHERE p.root_id = ANY (%s::bigint[])
"""
HELD: Final = """
SELECT p.uuid::text, k.uuid::text, k.generation, c.name, sum(a.used)::bigint
  FROM placement_allocation a
  JOIN placement_provider p ON p.id = a.provider_id
  JOIN placement_consumer k ON k.id = a.consumer_id
  JOIN placement_resource_class c ON c.id = a.resource_class_id
 WHERE p.root_id = ANY (%s::bigint[]) GROUP BY 1, 2, 3, 4
"""
BY_ZONE: Final = """
SELECT coalesce(nullif(h.zone, ''), 'no zone known'),
       count(*) FILTER (WHERE r.origin <> 'upstream'), count(*)
  FROM placement_provider r
  LEFT JOIN hosts_host h ON h.name = r.name OR h.openstack_id = r.uuid::text
 WHERE r.parent_id IS NULL GROUP BY 1 ORDER BY 1
"""


class NoSuchPartError(HeadroomError):
    """Nothing that was copied is what an operator named."""

    code = "placement_cutover_no_part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What an operator named; nothing at all for everything.

    Attributes:
        hosts: Names or UUIDs of roots.
        aggregates: UUIDs; a tree is of one if any provider of it is.
        zones: Of the hosts that Headroom knows.
    """

    hosts: Sequence[str] = ()
    aggregates: Sequence[str] = ()
    zones: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.hosts or self.aggregates or self.zones)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A tree that may change sides.

    Attributes:
        number: Id of its root.
        uuid: Of its root.
        name: Of its root.
    """

    number: int
    uuid: str
    name: str
    is_ours: bool
    providers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlan:
    """What changing sides would be about.

    Attributes:
        already_ours: Trees among them that are ours by now.
        spanning: Consumers that hold something of other trees as well; their writes are done over
            there for both sides until those trees are on one side.
        shares: Providers outside of it that share something with it, likewise.
        in_the_way: What has to be settled first, a line each.
    """

    trees: int
    already_ours: int
    providers: int
    consumers: int
    allocations: int
    spanning: int
    shares: tuple[str, ...]
    in_the_way: tuple[str, ...]


def trees_of(named: Named) -> list[Tree]:
    """Return the trees of what an operator named, by name of their roots; all for nothing.

    Raises:
        NoSuchPartError: something names no tree.
    """
    wanted = [*named.hosts, *named.aggregates, *named.zones]
    found = [
        Tree(number=n, uuid=u, name=name, is_ours=o, providers=c)
        for n, u, name, o, c in fetch(TREES, _parameters(named))
    ]
    if named:
        empty = [each for each in _each(named) if not fetch(TREES, _parameters(each))]
        if empty:
            told = ", ".join(str(word) for each in empty for word in _words(each))
            raise NoSuchPartError(
                f"nothing that was copied is {told}: --host takes the name or UUID of a provider "
                "without a parent, --aggregate a UUID, --zone a zone of the hosts that Headroom "
                "knows",
                named=len(wanted),
            )
    return found


def plan_part(named: Named, in_the_way: tuple[str, ...]) -> PartPlan:
    """Return what changing sides would be about.

    Raises:
        NoSuchPartError: as :func:`trees_of`.
    """
    trees = trees_of(named)
    roots = [tree.number for tree in trees]
    consumers, spanning, rows = fetch(CONSUMERS, [roots, roots])[0]
    return PartPlan(
        trees=len(trees),
        already_ours=sum(tree.is_ours for tree in trees),
        providers=sum(tree.providers for tree in trees),
        consumers=consumers,
        allocations=int(rows),
        spanning=spanning,
        shares=tuple(row[0] for row in fetch(SHARING, [roots, roots])[:SHOWN]),
        in_the_way=in_the_way,
    )


def by_zone() -> list[tuple[str, int, int]]:
    """Return of each zone how many trees are ours, and how many there are."""
    return [(zone, ours, count) for zone, ours, count in fetch(BY_ZONE)]


def unequal(peer: Peer, trees: Collection[Tree]) -> list[str]:
    """Return the providers of some trees, and their consumers, that are not the same on both sides.

    Both sides' generations, names and parents, and what consumers hold with their generations; to
    be asked while nobody writes.

    Raises:
        PeerError: the other side does not answer.
    """
    roots = [tree.number for tree in trees]
    here = {row[0]: tuple(row[1:]) for row in fetch(PART, [roots])}
    rows: dict[str, Json] = {}
    for found in peer.each(peer.tree, [tree.uuid for tree in trees]):
        rows |= found
    there = {
        uuid: (row["name"], row["generation"], row.get("parent_provider_uuid"))
        for uuid, row in rows.items()
    }
    differing = {uuid for uuid in here.keys() | there.keys() if here.get(uuid) != there.get(uuid)}
    held = _held(roots)
    listed = peer.each(
        lambda uuid: peer.find(f"/resource_providers/{uuid}/allocations") or {}, sorted(there)
    )
    for uuid, answer in zip(sorted(there), listed, strict=True):
        held_there = {
            consumer: (one["consumer_generation"], dict(one["resources"]))
            for consumer, one in answer.get("allocations", {}).items()
        }
        if held_there != held.get(uuid, {}):
            differing.add(uuid)
    return sorted(differing)


def part_of(contents: Contents, uuids: Collection[str]) -> Contents:
    """Return some providers, and the consumers that hold something of them.

    Args:
        contents: All.
        uuids: Of the providers.
    """
    wanted = frozenset(uuids)
    return Contents(
        classes=contents.classes,
        traits=contents.traits,
        providers={uuid: one for uuid, one in contents.providers.items() if uuid in wanted},
        consumers={
            uuid: one
            for uuid, one in contents.consumers.items()
            if not wanted.isdisjoint(one.allocations)
        },
    )


def members_of(trees: Collection[Tree]) -> frozenset[str]:
    """Return the providers of some trees."""
    return frozenset(row[0] for row in fetch(PART, [[tree.number for tree in trees]]))


def _held(roots: list[int]) -> Mapping[str, Mapping[str, tuple[int, dict[str, int]]]]:
    found: dict[str, dict[str, tuple[int, dict[str, int]]]] = defaultdict(dict)
    for provider, consumer, generation, name, used in fetch(HELD, [roots]):
        found[provider].setdefault(consumer, (generation, {}))[1][name] = used
    return found


def _parameters(named: Named) -> list[Any]:  # Any: of a statement
    uuids = [uuid for one in named.hosts if (uuid := canonical_uuid(one))]
    aggregates = [uuid for one in named.aggregates if (uuid := canonical_uuid(one))]
    return [not named, list(named.hosts), uuids, aggregates, list(named.zones)]


def _each(named: Named) -> list[Named]:
    return [
        *(Named(hosts=[one]) for one in named.hosts),
        *(Named(aggregates=[one]) for one in named.aggregates),
        *(Named(zones=[one]) for one in named.zones),
    ]


def _words(named: Named) -> list[str]:
    return [*named.hosts, *named.aggregates, *named.zones]
