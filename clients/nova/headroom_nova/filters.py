"""``headroom_nova.filters.HeadroomFilter``: the last of Nova's filters."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import nova.conf
from nova import context as nova_context
from nova import exception, objects
from nova.scheduler import filters
from oslo_log import log as logging

from headroom_nova.client import OPEN, Client, UnansweredError
from headroom_nova.intent import LIVE_MIGRATE, KnownServer, intent_of
from headroom_nova.wire import body_of

Anything = Any  # Nova has no types
LOG = logging.getLogger(__name__)
#: Where a request keeps the order of the answer for the weigher.
RANKS = "_headroom_ranks"


@lru_cache(maxsize=1)
def client() -> Client:
    """Return this process's client."""
    return Client(nova.conf.CONF)


class HeadroomFilter(filters.BaseHostFilter):  # type: ignore[misc]  # Nova has no types
    """Keeps the hosts that Headroom would take, and tells their order to the weigher."""

    RUN_ON_REBUILD = True

    def filter_all(self, filter_obj_list: Anything, spec_obj: Anything) -> Anything:
        """Ask once for all hosts of a request."""
        states = list(filter_obj_list)
        setattr(spec_obj, RANKS, None)  # of the server before it in the same request
        asked = client()
        if not states or not asked.options.url or asked.is_paused():
            return states
        try:
            ranks = asked.ask(_body(states, spec_obj))
        except UnansweredError:
            is_open = asked.options.on_failure == OPEN
            LOG.exception(
                "Headroom did not answer, %(left)s of %(count)d hosts stay",
                {"left": "all" if is_open else "none", "count": len(states)},
            )
            return states if is_open else []
        setattr(spec_obj, RANKS, ranks)
        left = [state for state in states if state.host in ranks]
        LOG.info(
            "Headroom was asked about %(count)d hosts, %(left)d stay",
            {"count": len(states), "left": len(left)},
        )
        return left


def _body(states: Anything, spec_obj: Anything) -> Anything:
    context = spec_obj._context.to_dict() if spec_obj._context else {}  # noqa: SLF001 - the only way
    server = _server(spec_obj.instance_uuid) if client().options.tell_intent else None
    intent = intent_of(server, spec_obj.ignore_hosts or ())
    return body_of(
        spec_obj.obj_to_primitive(),
        context,
        [(state.host, state.nodename) for state in states],
        intent=intent,
        source_host=server.host if server and intent == LIVE_MIGRATE else "",
    )


def _server(uuid: str) -> KnownServer | None:
    """Return a server as its cell has it; None if that cannot be told."""
    admin = nova_context.get_admin_context()
    try:
        mapping = objects.InstanceMapping.get_by_instance_uuid(admin, uuid)
        if mapping.cell_mapping is None:
            return KnownServer(is_new=True)
        with nova_context.target_cell(admin, mapping.cell_mapping) as in_cell:
            server = objects.Instance.get_by_uuid(in_cell, uuid, expected_attrs=[])
    except exception.NotFound:
        return None
    except Exception as error:  # noqa: BLE001 - a cell may fail in every way; the request goes on
        LOG.warning("no cell tells about server %s: %s", uuid, error)
        return None
    return KnownServer(task_state=server.task_state or "", host=server.host or "")
