"""Facts beside the host table as documents: rows and JSON files hold them (scheduling, 17.1).

Memory is given in MiB and becomes bytes here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, TypeAdapter

from core.json_bodies import Body, Members, Name, checked, problem, whole
from journal.errors import InvalidInput
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
    read: dict[str, Any] = checked(
        _READERS[name].validate_python, {} if content is None else content, path=name
    )
    return read


def knowledge_from_facts(facts: Mapping[str, dict[str, Any]]) -> Knowledge:
    """Return facts by name, see :func:`facts_from_document`, as knowledge; others are missing."""
    return Knowledge(
        utilisation=facts.get(HOST_UTILIZATION, {}),
        long_term_contention=facts.get(LONG_TERM_CONTENTION, {}),
        short_term_contention=facts.get(SHORT_TERM_CONTENTION, {}),
        noisiness=facts.get(PROJECT_NOISINESS, {}),
    )


def _percent(number: object) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float) or math.isnan(number):
        raise problem("must be a number")
    if not 0 <= number < math.inf:
        raise problem("must be 0 or more")
    return float(number)


_Mebibytes = Annotated[int, whole(0, MAX_MEMORY_MIB)]
_Cores = Annotated[int, whole(0, MAX_VCPUS)]
_Percent = Annotated[float, BeforeValidator(_percent)]


class _Utilisation(Body, validate_default=True):
    memory_mb: _Mebibytes = -1
    used_memory_mb: _Mebibytes = -1
    vcpus: _Cores = -1
    used_vcpus: _Cores = -1

    def facts(self) -> HostUtilisation:
        """Return what is said of a host."""
        return HostUtilisation(
            memory_bytes=self.memory_mb * MIB,
            used_memory_bytes=self.used_memory_mb * MIB,
            vcpus=self.vcpus,
            used_vcpus=self.used_vcpus,
        )


class _Contention(Body, validate_default=True):
    avg_cpu_contention: _Percent = math.nan
    max_cpu_contention: _Percent = math.nan

    def facts(self) -> HostContention:
        """Return what is said of a host."""
        return HostContention(
            average_percent=self.avg_cpu_contention, maximum_percent=self.max_cpu_contention
        )


_UtilisationByHost = Members[Name, Annotated[_Utilisation, AfterValidator(_Utilisation.facts)]]
_ContentionByHost = Members[Name, Annotated[_Contention, AfterValidator(_Contention.facts)]]
_READERS: Mapping[str, TypeAdapter[Any]] = {
    HOST_UTILIZATION: TypeAdapter(_UtilisationByHost),
    LONG_TERM_CONTENTION: TypeAdapter(_ContentionByHost),
    SHORT_TERM_CONTENTION: TypeAdapter(_ContentionByHost),
    PROJECT_NOISINESS: TypeAdapter(Members[Name, Members[Name, _Percent]]),
}
