"""Answering searches for allocation candidates from the provider snapshot (spec placement, 6)."""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any, Final

import orjson
import structlog

from core.conf import headroom
from journal.heavy import computed_apart
from placement.domain.candidate_answers import AnswerCache, CandidateAnswer, decisive_room
from placement.domain.candidate_encoding import encode_candidates
from placement.domain.candidate_explain import Explanation, explain_candidates
from placement.domain.candidate_parsing import ParsedQuery, QueryCache
from placement.domain.candidate_query import CandidateQuery, SearchOptions, Strategy
from placement.domain.candidates import Candidates, find_candidates
from placement.domain.errors import BadRequest
from placement.domain.hypothesis import Supposed, supposed_snapshot
from placement.domain.snapshot import Snapshot
from placement.metrics import observe_candidates
from placement.selectors.held import CORES, MEMORY, held_by_uuid
from placement.selectors.snapshot import current_snapshot, snapshot_with_copies

log = structlog.get_logger(__name__)

#: An answer of so many candidates has a hundred megabytes.
MOST_ANSWERED: Final = 200_000
_queries: Final = QueryCache()


def candidates_pieces(text: str, minor: int) -> Sequence[bytes]:
    """Return the encoded answer of a search in pieces that follow each other.

    Args:
        text: The raw query string.
        minor: Minor number of the microversion, from 10.

    Raises:
        BadRequest: the query breaks a rule or names what does not exist.
    """
    parsed = _queries.parse(text, minor)
    snapshot = current_snapshot()
    started = time.perf_counter()
    options = search_options()
    answer = _answer(parsed, (text, minor, options), snapshot, options)
    observe_candidates(
        groups=len(parsed.query.groups),
        is_limited=parsed.query.limit is not None,
        found=answer.found,
        seconds=time.perf_counter() - started,
    )
    return answer.pieces


def shadow_answer(text: str, minor: int) -> bytes:
    """Return what we would answer to a search without its limit if all copies were ours.

    Raises:
        BadRequest: the query breaks a rule or names what does not exist.
    """
    parsed = _queries.parse(text, minor)
    snapshot = snapshot_with_copies()
    check_names(parsed, snapshot)
    options = replace(search_options(), seed=None)
    found = _found(snapshot, replace(parsed.query, limit=None), options)
    return encode_candidates(snapshot, found, minor)


def _answer(
    parsed: ParsedQuery,
    key: tuple[str, int, SearchOptions],
    snapshot: Snapshot,
    options: SearchOptions,
) -> CandidateAnswer:
    """Return the answer of a search, the last one if nothing changed since."""
    answers = _kept_answers()
    known = answers.known(key, snapshot)
    if known is not None:
        return known
    check_names(parsed, snapshot)
    _, minor, _ = key
    if options.seed is not None:  # shuffled anew each time
        options = replace(options, turn=options.seed)
        return _shown_once(snapshot, _found(snapshot, parsed.query, options), minor)
    room = decisive_room(snapshot, parsed.query, hides_fully_held=options.hides_fully_held)
    again = answers.candidates(key, room)
    if again is None:
        turn = 0 if room is None or room.held is None else _turns.following(key)
        again = _found(snapshot, parsed.query, replace(options, turn=turn))
        if again.is_turn:
            return _shown_once(snapshot, again, minor)
    return answers.encoded(key, snapshot, again, minor, room=room)


def _shown_once(snapshot: Snapshot, found: Candidates, minor: int) -> CandidateAnswer:
    """Return an answer that is not the next one to the same search."""
    return CandidateAnswer(pieces=(encode_candidates(snapshot, found, minor),), found=len(found))


class Turns:
    """Counts the answers to each search whose limit cuts; safe for threads.

    A process begins at random, so that many of them show different hosts.

    Args:
        most: Searches that are remembered; what was asked least recently is forgotten.
    """

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._turns: OrderedDict[Hashable, int] = OrderedDict()

    def following(self, key: Hashable) -> int:
        """Return the next turn of a search."""
        with self._lock:
            turn = self._turns.pop(key, None)
            self._turns[key] = turn = random.getrandbits(30) if turn is None else turn + 1
            if len(self._turns) > self._most:
                self._turns.popitem(last=False)
            return turn


_turns: Final = Turns()


@cache
def _kept_answers() -> AnswerCache:
    return AnswerCache(headroom().placement.answer_cache_mib << 20)


def explored_query(
    text: str, minor: int, *, limit: int
) -> tuple[Snapshot, Explanation, Candidates]:
    """Return the providers, the explanation of a query and the first candidates.

    Args:
        text: The query string.
        minor: Minor number of the microversion whose grammar holds.
        limit: Most candidates to return.

    Raises:
        BadRequest: the query breaks a rule or names what does not exist.
    """
    parsed = _queries.parse(text, minor)
    snapshot = current_snapshot()
    check_names(parsed, snapshot)
    options = search_options()
    explanation, found = computed_apart(
        lambda: (
            explain_candidates(snapshot, parsed.query, options),
            find_candidates(snapshot, replace(parsed.query, limit=limit), options),
        )
    )
    return snapshot, explanation, found


def explanation_document(text: str, minor: int) -> Mapping[str, object]:
    """Return the explanation of a query as JSON, with what is held on the hosts that come nearest.

    Args:
        text: The raw query string.
        minor: Minor number of the microversion whose grammar holds, from 10.

    Raises:
        BadRequest: the query breaks a rule or names what does not exist.
    """
    _, explanation, _ = explored_query(text, minor, limit=1)
    held = held_by_uuid([tree.root for tree in explanation.nearest])
    return {
        **explanation.as_document(),
        "fully_held_hosts_are_hidden": search_options().hides_fully_held,
        "held_capacity": {
            uuid: {CORES: amounts.vcpus, MEMORY: amounts.memory_mib}
            for uuid, amounts in sorted(held.items())
        },
    }


def simulation_body(text: str, minor: int, supposed: Supposed) -> bytes:
    """Return the encoded answer of a search as if something were allocated or gone.

    Args:
        text: The query string.
        minor: Minor number of the microversion, from 10.
        supposed: What is supposed to be so.

    Raises:
        BadRequest: the query breaks a rule, or something is named that does not exist.
    """
    parsed = _queries.parse(text.removeprefix("?"), minor)
    real = current_snapshot()
    check_names(parsed, real)
    options = search_options()

    def simulated() -> bytes:
        snapshot, over = supposed_snapshot(real, supposed)
        found = _found(snapshot, parsed.query, options)
        facts = {
            "candidates": len(found),
            "candidates_now": len(_found(real, parsed.query, options)),
            "over_capacity": [asdict(one) for one in over],
        }
        answer = encode_candidates(snapshot, found, minor)
        return orjson.dumps(facts)[:-1] + b"," + answer[1:]

    return computed_apart(simulated)


def _found(snapshot: Snapshot, query: CandidateQuery, options: SearchOptions) -> Candidates:
    """Return the candidates of a request.

    Raises:
        BadRequest: there are more than a server can answer with, or so many ways to combine groups
            that none was found in time; the reference would be at it until its client gives up.
    """
    bounded = replace(query, limit=min(query.limit or MOST_ANSWERED + 1, MOST_ANSWERED + 1))
    found = find_candidates(snapshot, bounded, options)
    if len(found) > MOST_ANSWERED:
        raise BadRequest(
            f"The request has more than {MOST_ANSWERED} candidates; give a smaller limit."
        )
    if found.is_cut:
        log.warning("candidate_search_stopped", groups=len(query.groups), found=len(found))
        if not len(found):
            raise BadRequest(
                f"The search was stopped: among {options.most_tried} ways to combine the request "
                "groups there was no candidate. Ask for fewer groups, or narrow them by required, "
                "member_of or in_tree."
            )
    return found


def check_names(parsed: ParsedQuery, snapshot: Snapshot) -> None:
    """Refuse a query that names what does not exist.

    Raises:
        BadRequest: a trait or a resource class is unknown.
    """
    if not parsed.traits <= snapshot.known_traits:
        unknown = sorted(parsed.traits - snapshot.known_traits)
        raise BadRequest(f"No such trait(s): {', '.join(unknown)}.")
    if not parsed.classes <= snapshot.known_classes:
        unknown = sorted(parsed.classes - snapshot.known_classes)
        raise BadRequest(
            "Invalid resource class in resources parameter: "
            f"No such resource class {', '.join(unknown)}."
        )


def search_options() -> SearchOptions:
    """Return how the site wants candidates to be searched."""
    wanted = headroom().placement
    if wanted.randomize_allocation_candidates:
        return replace(_options(wanted), seed=random.getrandbits(64))
    return _options(wanted)


_known_options: tuple[object, SearchOptions] | None = None


def _options(wanted: Any) -> SearchOptions:  # Any: settings, see placement.conf
    """Return the options of the settings, made once for as long as these are the same."""
    global _known_options  # noqa: PLW0603 - one per process
    known = _known_options
    if known is None or known[0] is not wanted:
        known = _known_options = wanted, _made_options(wanted)
    return known[1]


def _made_options(wanted: Any) -> SearchOptions:  # Any: as above
    most = wanted.max_allocation_candidates
    return SearchOptions(
        strategy=Strategy(wanted.allocation_candidates_generation_strategy),
        most_candidates=None if most < 0 else most,
        most_tried=wanted.max_candidate_combinations or None,
        strict_reference=wanted.strict_reference,
        hides_fully_held=wanted.hide_fully_held,
    )
