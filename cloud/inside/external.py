"""Filter and weigher of Nova's scheduler that ask an external one, as SAP's fork of Nova does.

The filter, last in the list, sends hosts and weights to the address in the file that
``HEADROOM_EXTERNAL_URL_FILE`` names and keeps the hosts of the answer; the weigher makes the order
of the answer win. When nobody answers, all hosts stay.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import nova.conf
import requests
from keystoneauth1 import loading
from nova.scheduler import filters, weights
from oslo_log import log as logging

Anything = Any  # Nova has no types
LOG = logging.getLogger(__name__)
MOST_REMEMBERED = 1000
_ranks: dict[str, dict[str, int]] = {}


@cache
def _session() -> Anything:
    options = nova.conf.CONF, "placement"
    login = loading.load_auth_from_conf_options(*options)
    return loading.load_session_from_conf_options(*options, auth=login)


def _ask(body: Anything) -> list[str]:
    url = Path(os.environ["HEADROOM_EXTERNAL_URL_FILE"]).read_text(encoding="utf-8").strip()
    headers = {"X-Auth-Token": _session().get_token()}
    answer = requests.post(url, json=body, timeout=60, headers=headers)
    answer.raise_for_status()
    hosts: list[str] = answer.json()["hosts"]
    return hosts


class ExternalFilter(filters.BaseHostFilter):  # type: ignore[misc]  # Nova has no types
    """Keeps the hosts of the answer."""

    RUN_ON_REBUILD = False

    def filter_all(self, filter_obj_list: Anything, spec_obj: Anything) -> Anything:
        """Ask once for all hosts."""
        states = list(filter_obj_list)
        if not states:
            return states
        context = spec_obj._context.to_dict() if spec_obj._context else {}  # noqa: SLF001
        context.pop("auth_token", None)
        body = {
            "spec": spec_obj.obj_to_primitive(),
            "context": context,
            "hosts": [{"host": one.host, "hypervisor_hostname": one.nodename} for one in states],
            "weights": {one.host: 0.0 for one in states},
            "pipeline": "",
        }
        try:
            order = _ask(body)
        except (OSError, ValueError, KeyError):
            LOG.exception("external scheduler failed, all %d hosts stay", len(states))
            return states
        LOG.info("external scheduler: %d hosts in, %d out", len(states), len(order))
        rank = {host: place for place, host in enumerate(order)}
        _ranks[spec_obj.instance_uuid] = rank
        if len(_ranks) > MOST_REMEMBERED:
            _ranks.pop(next(iter(_ranks)))
        return [one for one in states if one.host in rank]


class ExternalWeigher(weights.BaseHostWeigher):  # type: ignore[misc]  # Nova has no types
    """Puts hosts into the order of the answer."""

    def weight_multiplier(self, host_state: Anything) -> float:
        """Outweigh all others."""
        del host_state
        return 1_000_000.0

    def _weigh_object(self, host_state: Anything, request_spec: Anything) -> float:
        rank = _ranks.get(request_spec.instance_uuid, {})
        return -float(rank.get(host_state.host, 0))
