"""What is written down of a write: that it goes out, or that the other side lacks it yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import orjson
import structlog
from django.db import Error
from django.http import HttpRequest, HttpResponse

from core.conf import headroom
from core.copying import number_array
from core.prepared import fetch_prepared, run
from journal.models import CURRENT_XID_SQL
from placement.api.rendering import MOUNT
from placement.domain.microversion import negotiated_minor
from placement.domain.touched import Touched, touched_by
from placement.gateway.again import request_again
from placement.gateway.views import target_of

log = structlog.get_logger(__name__)

#: What a write may take beyond the time of the other side's client.
GRACE_SECONDS: Final = 5.0
#: Answers after which nobody knows whether the write was done.
UNCERTAIN: Final = frozenset({502, 504})
NEW_PROVIDERS: Final = "resource_providers"

ANNOUNCE: Final = """
INSERT INTO placement_forwarded_write (providers, generations, consumers, has_names, ends_at)
VALUES (%s::uuid[], %s::uuid[], %s::uuid[], %s::boolean,
        clock_timestamp() + %s::float8 * interval '1 second')
RETURNING id
"""
DONE: Final = """
UPDATE placement_forwarded_write
   SET is_done = true, providers = providers || %s::uuid[]
 WHERE id = %s::bigint RETURNING id
"""
WITHDRAW: Final = "DELETE FROM placement_forwarded_write WHERE id = %s::bigint RETURNING id"
KEEP: Final = f"""
INSERT INTO placement_mirrored_write
    (method, target, minor, body, roots, consumers, providers_after, consumers_after)
SELECT %s, %s, %s, %s, r.roots, c.uuids,
       (SELECT coalesce(jsonb_object_agg(p.uuid, p.generation), '{{}}')
          FROM placement_provider p WHERE p.root_id = ANY (r.roots)),
       (SELECT coalesce(jsonb_object_agg(k.uuid, k.generation), '{{}}')
          FROM placement_consumer k WHERE k.uuid = ANY (c.uuids))
  FROM (SELECT ARRAY(SELECT root_id FROM placement_change WHERE xid = {CURRENT_XID_SQL}
                      UNION
                     SELECT root_id FROM placement_provider WHERE uuid = ANY (%s::uuid[])
                   ) AS roots) r,
       (SELECT %s::uuid[] AS uuids) c
"""  # noqa: S608 - a constant


@dataclass(slots=True)
class Asked:
    """A write that may have to be served more than once, with its body."""

    request: HttpRequest
    body: bytes
    touched: Touched

    @property
    def path(self) -> str:
        """Its path below the mount point, decoded."""
        return self.request.path_info[len(MOUNT) :] or "/"

    def again(self) -> HttpRequest:
        """Return the request as it came."""
        return request_again(self.request, self.body)


def announce(touched: Touched, *, more: Iterable[str] = ()) -> int:
    """Say that a write goes out, and what it touches; return its number.

    Args:
        touched: What it names.
        more: Providers that it does not name of which the generation may be another.
    """
    values = [
        number_array(sorted(touched.providers)),
        number_array(sorted(touched.generations.union(more))),
        number_array(sorted(touched.consumers)),
        touched.has_names,
        headroom().gateway.timeout_seconds + GRACE_SECONDS,
    ]
    return int(fetch_prepared(ANNOUNCE, values)[0][0])


def note_done(number: int, response: HttpResponse) -> None:
    """Say that a write has ended; what was created is known now.

    Without the database it is taken for ended when its time is over.
    """
    made = _made(response)
    try:
        fetch_prepared(DONE, [number_array(sorted(made)), number])
    except Error as error:
        log.warning("cutover_write_not_noted", error=str(error))


def keep(asked: Asked, response: HttpResponse) -> None:
    """Keep a write that was done in this transaction for the other side.

    It is about the trees that it changed and those that it names: one that changed nothing, such as
    traits that were there, carries a generation as well.

    Args:
        asked: The write.
        response: How it was answered.
    """
    request = asked.request
    minor = negotiated_minor(request.META.get("HTTP_OPENSTACK_API_VERSION"))
    providers = asked.touched.providers | asked.touched.generations
    named = [sorted(providers), sorted(asked.touched.consumers)]
    body = _whole_body(asked, response)
    run(KEEP, [str(request.method), target_of(request), minor, body, *named])


def _made(response: HttpResponse) -> frozenset[str]:
    """Return the UUID of the provider whose address an answer names; none if it names no other."""
    path = urlsplit(response.headers.get("Location", "")).path
    return touched_by(path.rpartition(f"{MOUNT}/")[2], b"").providers


def _whole_body(asked: Asked, response: HttpResponse) -> bytes:
    """Return the body of a write, with the UUID of a new provider for which its client named none.

    The other side would make up another one.
    """
    if asked.path.strip("/") != NEW_PROVIDERS or asked.touched.providers & _made(response):
        return asked.body
    (uuid,) = _made(response)
    return orjson.dumps({**orjson.loads(asked.body), "uuid": uuid})
