"""The shape of an object of Kubernetes that a row becomes, and what tells two of them apart.

An object is rendered whole: server-side apply removes what an earlier one had and this one lacks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from bridge.domain.kinds import Naming, ObjectKind
from bridge.domain.quantities import memory_quantity, timestamp

#: Times that move though nothing else does: sent along with other changes, never by themselves.
MOVING: Final = frozenset({"lastReconcileAt", "lastUsageReconcileAt", "lastFullReconcileAt"})
Json = dict[str, Any]  # Any: what JSON holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The Ready condition of a row; nothing is written while ``status`` is None.

    Attributes:
        is_current: Whether it is about the present spec, as far as the row says.
        changed_at: Of the last transition.
        is_latest: The row keeps no such time: it is at the latest when it was written last. What
            was told of the same status before is true then.
    """

    status: bool | None
    reason: str
    message: str
    changed_at: datetime
    is_current: bool = True
    is_latest: bool = False


#: Status of each condition and the time of its last transition, as they were told.
Transitions = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What a row should look like in its cluster, but for what only the cluster knows.

    Attributes:
        name: In the cluster.
        zone: Decides which cluster; empty where any may hold it.
        status: Without conditions.
        condition: That of the type Ready.
        others: Further conditions by their types.
        has_current_usage: Whether usage was counted for the present spec; None where there is none.
        part_ids: Keys of dependent rows that went into it.
    """

    kind: ObjectKind
    source_id: int
    name: str
    zone: str
    spec: Json
    status: Json
    condition: Condition
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    has_current_usage: bool | None = None
    part_ids: tuple[int, ...] = ()
    others: Mapping[str, Condition] = field(default_factory=dict)

    @property
    def condition_statuses(self) -> dict[str, str]:
        """Condition type -> its status, of those that are written."""
        if self.condition.status is None:
            return {}
        conditions = {"Ready": self.condition, **self.others}
        return {type_name: _truth(condition) for type_name, condition in conditions.items()}

    @property
    def spec_digest(self) -> str:
        """Tells whether anything but the status changed."""
        return digest([self.spec, dict(self.labels), dict(self.annotations)])

    def manifest(self, naming: Naming) -> Json:
        """Return the object without its status, as it is applied."""
        metadata: Json = {
            "name": self.name,
            "labels": {**self.labels, naming.managed_label: naming.region_value},
        }
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        return {
            "apiVersion": naming.api_version,
            "kind": self.kind.value,
            "metadata": metadata,
            "spec": self.spec,
        }

    def whole_status(
        self, generation: int, observed: int | None, told: Transitions | None = None
    ) -> Json:
        """Return the status with its conditions.

        Generations are the cluster's: what the row calls so counts other changes. Those that wait
        for a condition compare it with ``metadata.generation``.

        Args:
            generation: The object's, after its spec was applied.
            observed: The generation that the condition was about when it was last written.
            told: Transitions that were written before.
        """
        status = dict(self.status)
        if self.has_current_usage:
            status["usageObservedGeneration"] = generation
        if self.condition.status is None:
            return status
        seen = generation if self.condition.is_current else observed
        conditions = [
            _condition(type_name, condition, (told or {}).get(type_name))
            for type_name, condition in {"Ready": self.condition, **self.others}.items()
        ]
        if seen is not None:
            status["observedGeneration"] = seen
            for condition in conditions:
                condition["observedGeneration"] = seen
        return {**status, "conditions": conditions}


def _condition(type_name: str, condition: Condition, told: list[str] | None) -> Json:
    status = _truth(condition)
    is_told = condition.is_latest and told is not None and told[0] == status
    return {
        "type": type_name,
        "status": status,
        "reason": condition.reason or "Unknown",
        "message": condition.message,
        "lastTransitionTime": told[1] if is_told and told else timestamp(condition.changed_at),
    }


def _truth(condition: Condition) -> str:
    return "Unknown" if condition.status is None else str(condition.status)


def transitions(status: Json) -> dict[str, list[str]]:
    """Return what a status tells of transitions."""
    return {
        each["type"]: [each["status"], each["lastTransitionTime"]]
        for each in status.get("conditions", ())
    }


def digest(document: Any) -> str:  # Any: what JSON holds
    """Return what tells two documents apart, but for times that move on their own."""
    text = json.dumps(_still(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _still(value: Any) -> Any:  # Any: what JSON holds
    if isinstance(value, dict):
        return {key: _still(each) for key, each in value.items() if key not in MOVING}
    if isinstance(value, list):
        return [_still(each) for each in value]
    return value


def present(document: Mapping[str, Any]) -> Json:
    """Return what is known of a document: no field without a value, and no empty map.

    Server-side apply makes null of a map that had keys and has none; of a list that is a map, too.
    """
    return {key: value for key, value in document.items() if value is not None and value != {}}


def resources(*, memory_bytes: int, vcpus: int, cpu_key: str = "cpu") -> Json:
    """Return an amount as a map of quantities."""
    return {"memory": memory_quantity(memory_bytes), cpu_key: str(vcpus)}
