"""Passes of the feed: an import run over the lists of a live cloud (docs/feed.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings

from hosts.clients.listing import COMPUTE, CloudReader
from hosts.feed.hints import forget_hints, hinted_servers
from hosts.feed.lists import CloudList, PassKind, changed_servers, lists_of
from hosts.feed.providers import changed_providers
from hosts.feed.reading import CloudSource
from hosts.feed.state import begin_pass, fail_pass, finish_pass, listed_at
from hosts.region.about import keep_region
from hosts.region.inventory import PROVIDERS
from hosts.region.registry import registry
from hosts.region.run import SILENT, ImportOptions, ImportProgress, ImportReport, ImportRun, Live
from hosts.region.servers import SERVERS
from hosts.services.region_import import alone, take_in
from journal.errors import Busy, HeadroomError
from journal.leases import held_lease

if TYPE_CHECKING:
    from journal.actors import Actor

Json = Any  # bodies keep the APIs' own shapes

LEASE: Final = "hosts.feed"
FULL_KINDS: Final = tuple(kind for kind in PassKind if kind is not PassKind.CHANGES)


class NothingReadYet(HeadroomError):  # noqa: N818 - says what is the case
    """Changes are asked for before all VMs were read once."""

    code = "nothing_read_yet"


def run_pass(
    kind: PassKind,
    *,
    cloud: CloudReader,
    actor: Actor,
    request_id: str,
    accepts_shrink: bool = False,
    progress: ImportProgress = SILENT,
) -> ImportReport:
    """Read what the cloud lists of a kind and write what differs; remove what it says is gone.

    Reading goes on beside other passes, each of another kind; only one writes at a time.

    Args:
        kind: What is read; ``changes`` is the VMs that changed since the last look.
        accepts_shrink: Believe lists however much they lack (an operator said so).
        progress: Told how far the pass is.

    Raises:
        CloudUnreachable: A list could not be read; nothing was written.
        NothingReadYet: There is nothing that changes could be told from.
        Busy: Another pass of this kind is on, or what a part needs was not free.
    """
    with held_lease(f"{LEASE}.{kind}") as is_alone:
        if not is_alone:
            raise Busy(f"another pass over {kind} is on", lease=f"{LEASE}.{kind}")
        lists = _changes() if kind is PassKind.CHANGES else _lists(kind)
        began = begin_pass(kind)
        source = CloudSource(cloud, lists, most_asked=settings.HEADROOM.feed.most_asked)
        options = ImportOptions(prune=kind is not PassKind.CHANGES, accepts_shrink=accepts_shrink)
        run = ImportRun(
            actor=actor,
            request_id=request_id,
            now=began,
            options=options,
            live=Live(began=began, find_gone=source.find_gone, proves_loss=source.proves_loss),
            progress=progress,
        )
        sections = {each.section for each in lists}
        try:
            take_in(
                run,
                source.read,
                sections=[each for each in registry.live_sections() if each.path in sections],
                writing=alone(options),
            )
        except BaseException as error:
            fail_pass(kind, str(error) or type(error).__name__)
            raise
        keep_region({}, otherwise={"name": cloud.region_name, "source": "feed"})
        finish_pass(kind, began, run.report)
        forget_hints(PassKind.SERVERS if kind is PassKind.CHANGES else kind, began)
    return run.report


def _lists(kind: PassKind) -> tuple[CloudList, ...]:
    """Return the lists of a full pass; providers that did not change are not read again."""
    return tuple(
        replace(each, read=changed_providers) if each.section == PROVIDERS else each
        for each in lists_of(kind)
    )


def _changes() -> tuple[CloudList, ...]:
    """Return the list of the VMs that changed.

    Raises:
        NothingReadYet: Nobody knows since when.
    """
    since = listed_at(PassKind.CHANGES)
    if since is None:
        raise NothingReadYet("all VMs have to be read once before changes can be told")
    since -= timedelta(seconds=settings.HEADROOM.feed.overlap_seconds)
    text = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def read(cloud: CloudReader) -> Iterator[Json]:
        looked_at = set()
        for server in hinted_servers(cloud):
            looked_at.add(server["id"])
            yield server
        for server in changed_servers(cloud, text):
            if server.get("id") not in looked_at:
                yield server

    return (CloudList(section=SERVERS, kind=PassKind.CHANGES, service=COMPUTE, read=read),)
