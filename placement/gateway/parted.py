"""Reads while a cloud moves in parts: each side answers for its own trees (docs/gateway.md).

The other side has everything, ours a moment late; our tables have what is ours, and copies of all
else. So what needs one moment of both is asked where it is whole: consumers of something of ours
here, usages there once it has what was written here before, and candidates that use both there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Final

import orjson
from django.http import HttpResponse

from core.conf import headroom
from core.copying import number_array
from core.prepared import fetch_prepared
from placement.cutover.soon import mirror_soon
from placement.domain.errors import PlacementError, ServiceUnavailable
from placement.domain.merging import Document, merged_candidates
from placement.domain.querystring import canonical_uuid
from placement.gateway.asking import decoded
from placement.gateway.hybrid import (
    BAD_REQUEST,
    OK,
    SERVER_ERRORS,
    UNREADABLE,
    CandidatesView,
    HybridView,
    unreadable,
)
from placement.gateway.ownership import owned_among
from placement.gateway.upstream import UpstreamAnswer
from placement.gateway.views import response_of, target_of

#: How long sums wait for the other side to have what was written here, seconds.
MIRROR_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.01
LIMIT: Final = re.compile(r"(?<=[?&])limit=[^&]*&?")
#: Candidates that are asked for beyond the limit: those of ours alone do not count.
MORE: Final = 200

#: A consumer of which the other side has not all of our writes yet was wholly ours, and holds what
#: they left of it.
HOLDS_OURS: Final = """
SELECT EXISTS (
    SELECT FROM placement_consumer k
      JOIN placement_allocation a ON a.consumer_id = k.id
      JOIN placement_provider p ON p.id = a.provider_id
     WHERE k.uuid = ANY (%s::uuid[]) AND p.origin <> 'upstream')
    OR EXISTS (SELECT FROM placement_mirrored_write m WHERE m.consumers && %s::uuid[])
"""
NEWEST: Final = "SELECT coalesce(max(id), 0) FROM placement_mirrored_write"
IS_LEFT: Final = "SELECT EXISTS (SELECT FROM placement_mirrored_write WHERE id <= %s::bigint)"


class ConsumerView(HybridView):
    """What a consumer holds: whole here if any of it is ours, or was just now, else over there."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        uuid = items["consumer_uuid"]
        if canonical_uuid(uuid) == uuid:
            uuids = number_array([uuid])
            if fetch_prepared(HOLDS_OURS, [uuids, uuids])[0][0]:
                return self.by_us(items)
        return self.by_them()


class WholeUsagesView(HybridView):
    """Sums over both sides, from the other one once it has all that was written here before."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        del items
        wait_for_what_was_written()
        return self.by_them()


def whole(response: HttpResponse) -> HttpResponse:
    """Return an answer whose body may be read more than once."""
    if not response.streaming:
        return response
    kept = HttpResponse(b"".join(response), status=response.status_code)
    for name, text in response.headers.items():
        kept.headers[name] = text
    return kept


def wait_for_what_was_written() -> None:
    """Wait until the other side has every write of ours that was done by now.

    Raises:
        ServiceUnavailable: it takes too long.
    """
    newest = fetch_prepared(NEWEST)[0][0]
    ends_at = time.monotonic() + MIRROR_SECONDS
    while fetch_prepared(IS_LEFT, [newest])[0][0]:
        if time.monotonic() > ends_at:
            raise ServiceUnavailable(
                "The Placement behind this one does not have all that was written here yet.",
                headers={"Retry-After": "1"},
            )
        mirror_soon()
        time.sleep(LOOK_SECONDS)


class WholeCandidatesView(CandidatesView):
    """Candidates of ours from here, all others from there, those that use both among them."""

    def _routed(self, items: Mapping[str, str]) -> HttpResponse:
        if self.method != "GET":
            return self.by_us(items)
        ours = self.by_us(items)
        if ours.status_code not in {OK, BAD_REQUEST}:
            return ours
        found: Document = {"allocation_requests": [], "provider_summaries": {}}
        if ours.status_code == OK:
            ours = whole(ours)
            found = orjson.loads(ours.content)
        try:
            theirs = self._asked_whole(len(found["allocation_requests"]))
        except PlacementError:
            return self._degraded(ours)
        if theirs.status >= SERVER_ERRORS and headroom().gateway.candidates_degrade:
            return self._degraded(ours)
        if theirs.status != OK:
            return response_of(theirs, self.http_request)
        try:
            listed = decoded(theirs)
            document = merged_candidates(
                found,
                listed,
                owned=owned_among(listed["provider_summaries"]),
                limit=self._limit(),
                keeps_mixed=True,
            )
        except UNREADABLE as error:
            raise unreadable("candidates") from error
        return self.merged(self.successful(ours, theirs), theirs, document)

    def _asked_whole(self, count: int) -> UpstreamAnswer:
        """Return what the other side finds, of which those of ours alone do not count.

        With a limit somewhat more is asked for; where that is used up by candidates of ours, all.

        Args:
            count: How many are ours.
        """
        limit = self._limit()
        target = target_of(self.http_request)
        if limit is None:
            return self.read_there()
        bare = LIMIT.sub("", target).rstrip("?&")
        joint = "&" if "?" in bare else "?"
        most = limit + 2 * count + MORE
        answer = self._read_target(f"{bare}{joint}limit={most}")
        if answer.status != OK:
            return answer
        try:
            listed = decoded(answer)["allocation_requests"]
        except UNREADABLE as error:
            raise unreadable("candidates") from error
        return answer if len(listed) < most else self._read_target(bare)

    def _read_target(self, target: str) -> UpstreamAnswer:
        return self.asked("GET", target, self._headers(), until=self.until)
