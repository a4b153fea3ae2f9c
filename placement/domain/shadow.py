"""Two answers to one search for candidates, compared (spec placement, 8.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

MOST_SHOWN: Final = 5
#: Of a candidate or a summary nothing else is compared: links and mappings follow from these.
ORDER: Final = "order"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between two answers.

    Attributes:
        reason: In words.
        ours: Some of what only ours has.
        theirs: Some of what only theirs has.
    """

    reason: str
    ours: list[Any]  # Any: decoded JSON
    theirs: list[Any]


def candidate_difference(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], *, limit: int | None
) -> Difference | None:
    """Return the gravest difference between two answers, nothing if they are the same.

    Args:
        ours: Found without a limit.
        theirs: Found with it.
        limit: Of the request; where it cuts, any choice among the candidates is right.
    """
    found, given = _keyed(ours), _keyed(theirs)
    is_cut = limit is not None and len(theirs["allocation_requests"]) >= limit
    surplus = [given[key] for key in given if key not in found]
    missing = [] if is_cut else [found[key] for key in found if key not in given]
    if surplus or missing:
        return Difference(
            reason="other candidates", ours=missing[:MOST_SHOWN], theirs=surplus[:MOST_SHOWN]
        )
    summaries, known = ours["provider_summaries"], theirs["provider_summaries"]
    differing = [
        uuid for uuid in known if _comparable(known[uuid]) != _comparable(summaries.get(uuid, {}))
    ]
    if not is_cut:
        differing += [uuid for uuid in summaries if uuid not in known]
    if differing:
        shown = differing[:MOST_SHOWN]
        return Difference(
            reason="other summaries",
            ours=[{uuid: summaries.get(uuid)} for uuid in shown],
            theirs=[{uuid: known.get(uuid)} for uuid in shown],
        )
    if not is_cut and list(found) != list(given):
        return Difference(
            reason=ORDER,
            ours=list(found.values())[:MOST_SHOWN],
            theirs=list(given.values())[:MOST_SHOWN],
        )
    return None


def _keyed(document: Mapping[str, Any]) -> dict[bytes, Any]:
    return {_key(one["allocations"]): one["allocations"] for one in document["allocation_requests"]}


def _key(held: object) -> bytes:
    if isinstance(held, list):  # before 1.12
        held = sorted(held, key=lambda one: str(one["resource_provider"]["uuid"]))
    return orjson.dumps(held, option=orjson.OPT_SORT_KEYS)


def _comparable(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {**summary, "traits": sorted(summary.get("traits", []))}
