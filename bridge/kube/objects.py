"""Writing one object: spec and status by applies of their own, only what changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from bridge.domain.kinds import Kind, Naming
from bridge.domain.objects import Rendered, digest
from bridge.domain.quantities import timestamp
from bridge.domain.writing import (
    Known,
    event_manifest,
    event_of,
    hand_edit_message,
    reason_of,
)
from bridge.kube.door import (
    MANAGER,
    STATUS_MANAGER,
    Door,
    Json,
    ObjectChanged,
    ObjectRefused,
    kind_path,
)

EVENTS_PATH: Final = "/api/v1/namespaces/default/events"


@dataclass(slots=True, kw_only=True)
class Written:
    """What became of an object.

    Attributes:
        known: What is known of it from now on.
        requests: That changed something.
        is_outdated: It is not as it was written last; ``known`` is empty then, and it is to be
            written again.
        is_drifted: Somebody else had changed or deleted it.
        error: Why the cluster did not take it; empty when it did.
    """

    known: Known
    requests: int = 0
    is_outdated: bool = False
    is_drifted: bool = False
    error: str = ""
    events: list[Json] = field(default_factory=list)


class Writer:
    """Writes objects of one cluster; safe for threads."""

    def __init__(self, door: Door, naming: Naming, cluster: str) -> None:
        self._door = door
        self._naming = naming
        self._cluster = cluster

    def path(self, kind: Kind, name: str = "", sub: str = "") -> str:
        """Return the address of a kind, an object or its status."""
        return kind_path(self._naming.group, self._naming.version, kind.plural, name, sub)

    def delete(self, known: Known) -> None:
        """Delete an object of ours; another's of that name stays.

        Raises:
            ClusterUnavailable: the cluster does not answer.
        """
        path = self.path(known.kind, known.name)
        found = self._door.get(path)
        if found is not None and self._is_ours(found):
            self._door.delete(path)

    def write(self, known: Known, rendered: Rendered) -> Written:
        """Bring an object to what its row says.

        Raises:
            ClusterUnavailable: the cluster does not answer.
        """
        written = Written(known=known)
        try:
            self._write(written, rendered)
        except ObjectChanged:
            found = self._door.get(self.path(rendered.kind, rendered.name))
            written.is_outdated = True
            written.is_drifted = found is None or not _is_by_us(found)
            written.known = emptied(written.known)
        except ObjectRefused as error:
            written.error = error.message
        return written

    def _write(self, written: Written, rendered: Rendered) -> None:
        known = replace(written.known, name=rendered.name, cluster=self._cluster)
        uid = ""
        if known.spec_digest != rendered.spec_digest or not known.resource_version:
            answer, is_new = self._apply_spec(known, rendered)
            about = answer["metadata"]
            uid = about["uid"]
            written.is_drifted = is_new and bool(known.resource_version)
            known = replace(
                known,
                status_digest="" if is_new else known.status_digest,
                spec_digest=rendered.spec_digest,
                resource_version=about["resourceVersion"],
                generation=int(about["generation"]),
            )
            written.requests += 1
            written.known = known
        status = rendered.whole_status(known.generation, known.observed)
        status_digest = digest(status)
        if known.status_digest != status_digest:
            answer, _ = self._apply_status(known, status)
            about = answer["metadata"]
            uid = about["uid"]
            ready = status.get("conditions", [{}])[0]
            known = replace(
                known,
                status_digest=status_digest,
                resource_version=about["resourceVersion"],
                observed=ready.get("observedGeneration"),
            )
            written.requests += 1
        if uid and (event := event_of(known, rendered)):
            written.events.append(self._event(rendered, event, uid))
        written.known = replace(known, reason=reason_of(rendered), is_first=False)

    def _apply_spec(self, known: Known, rendered: Rendered) -> tuple[Json, bool]:
        path = self.path(rendered.kind, rendered.name)
        manifest = rendered.manifest(self._naming)
        if known.resource_version:
            manifest["metadata"]["resourceVersion"] = known.resource_version
            return self._door.apply(path, manifest)
        try:
            return self._door.apply(path, manifest, force=False)
        except ObjectChanged:
            found = self._door.get(path)
        if found is not None:
            if not self._is_ours(found):
                raise ObjectRefused(f"{rendered.name} is there and not ours")
            manifest["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        return self._door.apply(path, manifest)

    def _apply_status(self, known: Known, status: Json) -> tuple[Json, bool]:
        manifest = {
            "apiVersion": self._naming.api_version,
            "kind": known.kind.value,
            "metadata": {"name": known.name, "resourceVersion": known.resource_version},
            "status": status,
        }
        path = self.path(known.kind, known.name, "status")
        return self._door.apply(path, manifest, manager=STATUS_MANAGER)

    def _event(self, rendered: Rendered, event: tuple[str, str], uid: str) -> Json:
        condition = rendered.condition
        return event_manifest(
            rendered.kind,
            rendered.name,
            self._naming,
            event=event,
            message=condition.message or condition.reason,
            uid=uid,
            at=timestamp(condition.changed_at) or "",
        )

    def tell(self, event: Json) -> None:
        """Create an Event; one that the cluster does not take is left out.

        Raises:
            ClusterUnavailable: the cluster does not answer.
        """
        try:
            self._door.create(EVENTS_PATH, event)
        except ObjectRefused:
            return

    def tell_of_hand_edit(self, kind: Kind, name: str) -> None:
        """Create an Event that says who changed an object, or that it was deleted.

        Raises:
            ClusterUnavailable: the cluster does not answer.
        """
        found = self._door.get(self.path(kind, name))
        entries = [] if found is None else found["metadata"].get("managedFields", [])
        by_others = [one for one in entries if one.get("manager") not in (MANAGER, STATUS_MANAGER)]
        about = {} if found is None else found["metadata"]
        self.tell(
            event_manifest(
                kind,
                name,
                self._naming,
                event=("Warning", "HandEdited"),
                message=hand_edit_message({str(one.get("manager")) for one in by_others}),
                uid=about.get("uid", ""),
                at=max((str(one.get("time") or "") for one in by_others), default="")
                or about.get("creationTimestamp", ""),
            )
        )

    def versions(self, kind: Kind) -> dict[str, str]:
        """Return name and version of every object of ours.

        Raises:
            ClusterUnavailable: the cluster does not answer, or not to the end.
        """
        selector = f"{self._naming.managed_label}={self._naming.region_value}"
        found = self._door.list_metadata(self.path(kind), selector=selector)
        return {each.name: each.resource_version for each in found}

    def _is_ours(self, found: Json) -> bool:
        labels = found["metadata"].get("labels") or {}
        return bool(labels.get(self._naming.managed_label) == self._naming.region_value)


def _is_by_us(found: Json) -> bool:
    """Return whether nobody but bridges wrote an object: one may have died before it noted that."""
    entries = found["metadata"].get("managedFields", ())
    return {entry.get("manager") for entry in entries} <= {MANAGER, STATUS_MANAGER}


def emptied(known: Known) -> Known:
    """Return what is known of an object that others changed: its name."""
    return replace(known, spec_digest="", status_digest="", resource_version="")
