"""Resource providers, each read again only when its generation changed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from hosts.clients.listing import CloudReader
from hosts.feed.lists import bare_providers, with_parts
from hosts.models import ListedProvider
from journal.clock import database_now

READ_AGAIN: Final = timedelta(days=1)
"""Writes to aggregates before Placement 1.19 leave the generation as it is."""
BATCH_ROWS: Final = 1000

Json = Any  # bodies keep the APIs' own shapes


def changed_providers(cloud: CloudReader) -> Iterator[Json]:
    """Yield all providers with what hosts are made of; ask only for those that changed.

    Placement raises the generation of a provider with its inventories, traits and aggregates.
    """
    now = database_now()
    bare = bare_providers(cloud)
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
