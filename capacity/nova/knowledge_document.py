"""Facts beside the host table as documents: rows and JSON files hold them (scheduling, 17.1).

Memory is given in MiB and becomes bytes here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from journal.errors import InvalidInput
from journal.json_node import JSONNode
from scheduling.knowledge import (
    HOST_UTILIZATION,
    LONG_TERM_CONTENTION,
    PROJECT_NOISINESS,
    SHORT_TERM_CONTENTION,
    HostContention,
    HostUtilisation,
    Knowledge,
)
from scheduling.resources import MIB

MAX_NAME_LENGTH = 255
MAX_MEMORY_MIB = 1 << 40
MAX_VCPUS = 1 << 31


def knowledge_from_documents(documents: Mapping[str, object]) -> Knowledge:
    """Return what documents say, by the name of the knowledge.

    Args:
        documents: Name -> content: for ``host-utilization`` host -> ``memory_mb``,
            ``used_memory_mb``, ``vcpus``, ``used_vcpus``; for the contended hosts host ->
            ``avg_cpu_contention``, ``max_cpu_contention`` in percent; for
            ``vmware-project-noisiness`` project -> host -> average CPU of the project in percent.

    Raises:
        InvalidInput: a name is not known, or a content is of another shape; the message says where.

    Source: spec scheduling, 17.1.
    """
    return knowledge_from_facts(
        {name: facts_from_document(name, content) for name, content in documents.items()}
    )


def facts_from_document(name: str, content: object) -> dict[str, Any]:
    """Return the facts of one name by host or project; Any: each name has a type of its own.

    Raises:
        InvalidInput: the name is not known, or the content is of another shape; the message says
            where.
    """
    if name not in _READERS:
        known = ", ".join(_READERS)
        raise InvalidInput(f"{name}: is no knowledge of the scheduler; known are {known}")
    return _each(JSONNode(name, content), _READERS[name])


def knowledge_from_facts(facts: Mapping[str, dict[str, Any]]) -> Knowledge:
    """Return facts by name, see :func:`facts_from_document`, as knowledge; others are missing."""
    return Knowledge(
        utilisation=facts.get(HOST_UTILIZATION, {}),
        long_term_contention=facts.get(LONG_TERM_CONTENTION, {}),
        short_term_contention=facts.get(SHORT_TERM_CONTENTION, {}),
        noisiness=facts.get(PROJECT_NOISINESS, {}),
    )


def _each(node: JSONNode, read: Callable[[JSONNode], Any]) -> dict[str, Any]:
    """Return an object with each of its values read; Any: each reader has a type of its own."""
    return {name: read(one) for name, one in node.members(max_key_length=MAX_NAME_LENGTH)}


def _utilisation(node: JSONNode) -> HostUtilisation:
    return HostUtilisation(
        memory_bytes=_count(node.member("memory_mb"), MAX_MEMORY_MIB) * MIB,
        used_memory_bytes=_count(node.member("used_memory_mb"), MAX_MEMORY_MIB) * MIB,
        vcpus=_count(node.member("vcpus"), MAX_VCPUS),
        used_vcpus=_count(node.member("used_vcpus"), MAX_VCPUS),
    )


def _contention(node: JSONNode) -> HostContention:
    return HostContention(
        average_percent=_percent(node.member("avg_cpu_contention")),
        maximum_percent=_percent(node.member("max_cpu_contention")),
    )


def _shares(node: JSONNode) -> dict[str, float]:
    return _each(node, _percent)


def _count(node: JSONNode, highest: int) -> int:
    number = node.unsigned()
    if not node.is_set or number > highest:
        raise node.wrong(f"must be an integer from 0 to {highest}")
    return number


def _percent(node: JSONNode) -> float:
    number = node.content
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise node.wrong("must be a number")
    if not (math.isfinite(number) and number >= 0):
        raise node.wrong("must be 0 or more")
    return float(number)


_READERS: Mapping[str, Callable[[JSONNode], object]] = {
    HOST_UTILIZATION: _utilisation,
    LONG_TERM_CONTENTION: _contention,
    SHORT_TERM_CONTENTION: _contention,
    PROJECT_NOISINESS: _shares,
}
