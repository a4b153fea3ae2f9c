"""Resource providers, each read again only when its generation changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.conf import settings

from hosts.clients.listing import PLACEMENT, CloudReader, CloudUnreachable
from hosts.feed.lists import bare_providers, in_parallel, provider_by_uuid, with_parts
from hosts.models import Host, ListedProvider
from journal.clock import database_now

READ_AGAIN: Final = timedelta(days=1)
"""Writes to aggregates before Placement 1.19 leave the generation as it is."""
BATCH_ROWS: Final = 1000

Json = Any  # bodies keep the APIs' own shapes


def changed_providers(cloud: CloudReader) -> Iterator[Json]:
    """Yield all providers with what hosts are made of; ask only for those that changed.

    Placement raises the generation of a provider with its inventories, traits and aggregates.

    Raises:
        CloudUnreachable: The list lacks a provider that is there: a host without one would be
            taken for as large as its hypervisor says.
    """
    now = database_now()
    bare = bare_providers(cloud)
    _check_absent(cloud, {provider["uuid"] for provider in bare})
    known = {
        (row.uuid, row.generation): row.body
        for row in ListedProvider.objects.filter(read_at__gt=now - READ_AGAIN).iterator()
    }
    changed = []
    for provider in bare:
        body = known.get((provider.get("uuid"), provider.get("generation")))
        if body is None:
            changed.append(provider)
        else:
            yield {**body, **provider}
    fresh = []
    for provider in with_parts(cloud, changed):
        yield provider
        if isinstance(provider.get("generation"), int):
            fresh.append(
                ListedProvider(
                    uuid=provider["uuid"],
                    generation=provider["generation"],
                    body=provider,
                    read_at=now,
                )
            )
    ListedProvider.objects.bulk_create(
        fresh,
        batch_size=BATCH_ROWS,
        update_conflicts=True,
        unique_fields=["uuid"],
        update_fields=["generation", "body", "read_at"],
    )
    ListedProvider.objects.exclude(uuid__in=[provider["uuid"] for provider in bare]).delete()


def _check_absent(cloud: CloudReader, listed: Collection[str]) -> None:
    """Ask for providers of hosts that a list lacks; all of them would be too many to be true."""
    of_hosts = Host.objects.exclude(provider_uuid="").order_by("provider_uuid")
    absent = [
        uuid for uuid in of_hosts.values_list("provider_uuid", flat=True) if uuid not in listed
    ]
    asked = absent[: settings.HEADROOM.feed.most_asked]
    for uuid, found in zip(
        asked, in_parallel(partial(provider_by_uuid, cloud), asked), strict=True
    ):
        if found:
            raise CloudUnreachable(
                f"{PLACEMENT}: the list of providers lacks {uuid}, which is there",
                service=PLACEMENT,
            )
