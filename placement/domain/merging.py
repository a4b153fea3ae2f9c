"""Answers of two Placements made one (spec placement, 8.5). Ours win; theirs come after.

Documents are decoded JSON of one version. What another service sent may have any shape: whatever
has not the expected one raises KeyError, TypeError, ValueError or AttributeError.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from placement.domain.microversion import MAJOR, MAX_MINOR, MIN_MINOR, VERSION

Document = dict[str, Any]  # Any: decoded JSON


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Minor versions from one to another, both included."""

    low: int = MIN_MINOR
    high: int = MAX_MINOR

    def joined(self, other: VersionRange) -> VersionRange:
        """Return what both speak; this one if that is nothing."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return VersionRange(low, high) if low <= high else self


OURS: Final = VersionRange()


def version_range(document: object) -> VersionRange | None:
    """Return what a version document says, nothing if it says nothing usable."""
    try:
        first: Any = document["versions"][0]  # type: ignore[index]
        low, high = (_minor(first[name]) for name in ("min_version", "max_version"))
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return VersionRange(low, high)


def _minor(text: str) -> int:
    match = VERSION.fullmatch(text)
    if match is None or int(match[1]) != MAJOR:
        raise ValueError(text)
    return int(match[2])


def merged_providers(
    ours: list[Document], theirs: list[Document], taken: Collection[tuple[str, str]]
) -> list[Document]:
    """Return providers of both by name; of theirs those that have neither UUID nor name of ours.

    Args:
        ours: That match.
        theirs: That match.
        taken: UUID and name of providers of ours, whether they match or not.
    """
    uuids, names = {uuid for uuid, _ in taken}, {name for _, name in taken}
    left = [one for one in theirs if one["uuid"] not in uuids and one["name"] not in names]
    return sorted([*ours, *left], key=lambda one: str(one["name"]))


def merged_usages(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Document:
    """Return sums of two documents of ``/usages``, by class or by consumer type and class."""
    summed: Document = {}
    for found in (ours["usages"], theirs["usages"]):
        for name, amount in found.items():
            if isinstance(amount, dict):
                known = summed.get(name, {})
                summed[name] = {
                    key: known.get(key, 0) + amount.get(key, 0) for key in {**known, **amount}
                }
            else:
                summed[name] = summed.get(name, 0) + amount
    return {"usages": summed}


def merged_allocations(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Document:
    """Return what a consumer holds of both; who it is and its generation as ours say."""
    return {**ours, "allocations": {**theirs["allocations"], **ours["allocations"]}}


def merged_candidates(
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    *,
    owned: Collection[str],
    limit: int | None,
    keeps_mixed: bool = False,
) -> Document:
    """Return candidates of both, ours first and none of them twice, with their summaries.

    Args:
        ours: Document of ours.
        owned: Providers of ours among theirs: no candidate of theirs may use one.
        limit: Most candidates.
        keeps_mixed: Whether those of theirs that use providers of both are kept: the other side has
            what is ours as well, so that only candidates of ours alone are known better here.
    """
    drops = all if keeps_mixed else any
    known = {_key(one) for one in ours["allocation_requests"]}
    kept = [
        *ours["allocation_requests"],
        *(
            one
            for one in theirs["allocation_requests"]
            if not drops(uuid in owned for uuid in providers_of(one)) and _key(one) not in known
        ),
    ][:limit]
    summaries = {**theirs["provider_summaries"], **ours["provider_summaries"]}
    used = {uuid for one in kept for uuid in providers_of(one)}
    trees = {summaries[uuid].get("root_provider_uuid") for uuid in used if uuid in summaries}
    return {
        "allocation_requests": kept,
        "provider_summaries": {
            uuid: summary
            for uuid, summary in summaries.items()
            if uuid in used or (summary.get("root_provider_uuid") or uuid) in trees
        },
    }


def providers_of(candidate: Mapping[str, Any]) -> Iterable[str]:
    """Return the providers that a candidate uses, in either form."""
    held = candidate["allocations"]
    return held if isinstance(held, dict) else [one["resource_provider"]["uuid"] for one in held]


def _key(candidate: object) -> bytes:
    return orjson.dumps(candidate, option=orjson.OPT_SORT_KEYS)
