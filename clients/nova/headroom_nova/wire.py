"""What is sent to Headroom and what comes back, as plain values (docs/api/scheduler.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]  # Any: JSON

DATA = "nova_object.data"
HINTS = "scheduler_hints"
INTENT_HINT = "_nova_check_type"
SOURCE_HOST_HINT = "source_host"


class AnswerError(Exception):
    """What came back is not an answer."""


def body_of(
    spec: Document,
    context: Document,
    hosts: Sequence[tuple[str, str]],
    *,
    intent: str,
    source_host: str = "",
) -> dict[str, Any]:
    """Return the body of a call.

    Args:
        spec: The request as Nova writes it for others (``obj_to_primitive()``); not changed.
        context: Of the request; its token does not leave Nova.
        hosts: Host and hypervisor name of each candidate.
        intent: What it is for; empty leaves it to Headroom. A hint of Nova's own stays.
        source_host: Where the server comes from, if it is known.
    """
    fields = dict(spec.get(DATA) or {})
    hints = dict(fields.get(HINTS) or {})
    if intent:
        hints.setdefault(INTENT_HINT, [intent])
    if source_host:
        hints.setdefault(SOURCE_HOST_HINT, [source_host])
    fields[HINTS] = hints
    return {
        "spec": {**spec, DATA: fields},
        "context": {name: entry for name, entry in context.items() if name != "auth_token"},
        "hosts": [{"host": host, "hypervisor_hostname": node} for host, node in hosts],
        "weights": {host: 0.0 for host, _ in hosts},
        "pipeline": "",
    }


def ranks_of(answer: object) -> dict[str, int]:
    """Return the place of each host of an answer, 0 for the best.

    Raises:
        AnswerError: it is not ``{"hosts": [NAME, ...]}``.
    """
    hosts = answer.get("hosts") if isinstance(answer, dict) else None
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        message = f"no list of hosts: {str(answer)[:200]}"
        raise AnswerError(message)
    ranks: dict[str, int] = {}
    for place, host in enumerate(hosts):
        ranks.setdefault(host, place)
    return ranks
