"""Writing one object: spec and status by applies of their own, only what changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from bridge.domain.edits import (
    Path,
    adopted_fields,
    edited,
    path_text,
    still_adopted,
    surplus,
    without,
)
from bridge.domain.kinds import Naming, ObjectKind
from bridge.domain.objects import Rendered, digest, transitions
from bridge.domain.quantities import timestamp
from bridge.domain.writing import (
    Known,
    event_manifest,
    event_of,
    hand_edit_message,
    reason_of,
)
from bridge.kube.client import (
    MANAGER,
    STATUS_MANAGER,
    ClusterClient,
    Json,
    ObjectChanged,
    ObjectRefused,
    kind_path,
)

EVENTS_PATH: Final = "/api/v1/namespaces/default/events"
#: What an Event says that becomes of an edit, by policy.
OUTCOMES: Final = {
    "restore": "written anew",
    "report": "left as it is",
    "adopt": "left until the database says something else",
}


@dataclass(slots=True, kw_only=True)
class Written:
    """What became of an object.

    Attributes:
        known: What is known of it from now on.
        requests: That changed something.
        is_outdated: It is not as it was written last, and is to be looked at again.
        is_drifted: Somebody else had changed or deleted it.
        is_left: It is, or a part of it, as others left it.
        error: Why the cluster did not take it; empty when it did.
    """

    known: Known
    requests: int = 0
    is_outdated: bool = False
    is_drifted: bool = False
    is_left: bool = False
    error: str = ""
    events: list[Json] = field(default_factory=list)


class Writer:
    """Writes objects of one cluster; safe for threads."""

    def __init__(self, client: ClusterClient, naming: Naming, cluster: str) -> None:
        self.client = client
        self._naming = naming
        self._cluster = cluster

    def path(self, kind: ObjectKind, name: str = "", sub: str = "") -> str:
        """Return the address of a kind, an object or its status."""
        return kind_path(self._naming.group, self._naming.version, kind.plural, name, sub)

    def delete(self, known: Known) -> None:
        """Delete an object of ours; another's of that name stays.

        Raises:
            ClusterUnavailable: the cluster does not answer.
        """
        path = self.path(known.kind, known.name)
        found = self.client.get(path)
        if found is not None and self._is_ours(found):
            self.client.delete(path)

    def write(self, known: Known, rendered: Rendered, *, policy: str) -> Written:
        """Bring an object to what its row says, as far as its edits are not left.

        Args:
            policy: What becomes of edits: restore, report or adopt.

        Raises:
            ClusterUnavailable: the cluster does not answer.
        """
        written = Written(known=known)
        try:
            if known.is_suspect:
                self._examine(written, rendered, policy)
            elif known.is_left:
                self._look_whether_left(written, rendered, policy)
            if not written.is_left or written.known.adopted is not None:
                self._write(written, rendered)
        except ObjectChanged:
            written.is_outdated = True
            written.known = replace(written.known, is_suspect=True)
        except ObjectRefused as error:
            written.error = error.message
        return written

    def _look_whether_left(self, written: Written, rendered: Rendered, policy: str) -> None:
        """Find out whether what others left is still to be left."""
        known = written.known
        adopted = known.adopted
        if adopted is None or policy != "adopt":
            written.is_left = policy == "report"
            written.known = known if written.is_left else replace(known, adopted=None)
            return
        if "gone" in adopted:
            written.is_left = adopted["gone"] == rendered.spec_digest
            written.known = known if written.is_left else _forgotten(known)
            return
        fields = still_adopted(adopted["fields"], rendered.manifest(self._naming))
        written.is_left = bool(fields)
        written.known = replace(known, adopted={**adopted, "fields": fields} if fields else None)

    def _examine(self, written: Written, rendered: Rendered, policy: str) -> None:
        """Look at an object that is not as it was written, and decide what becomes of that."""
        known = replace(written.known, is_suspect=False)
        found = self.client.get(self.path(rendered.kind, rendered.name))
        if found is None:
            written.is_drifted = bool(known.resource_version)
            self._decide_on_deletion(written, known, rendered, policy)
            paths: list[Path] = []
        elif not self._is_ours(found) and not _is_by_us(found):
            written.known = _forgotten(known)  # another's of that name
            return
        else:
            paths = self._edits(known, found, rendered)
            about = found["metadata"]
            written.is_drifted = bool(paths) and about["resourceVersion"] != known.resource_version
            fields = self._to_adopt(known, paths, rendered)
            is_adopted = policy == "adopt" and bool(fields)
            written.is_left = is_adopted or (policy == "report" and bool(paths))
            written.known = replace(
                known,
                # what is left says what the row said then; all else is written in full
                spec_digest=rendered.spec_digest if written.is_left and not is_adopted else "",
                status_digest="",
                resource_version=about["resourceVersion"],
                generation=int(about["generation"]),
                adopted={"uid": about["uid"], "fields": fields} if is_adopted else None,
            )
            if policy == "restore" or (policy == "adopt" and paths):
                self._take_away_surplus(written, found, rendered, policy)
        if written.is_drifted:
            written.events.append(
                self._edit_event(
                    found,
                    rendered,
                    paths,
                    OUTCOMES[policy if written.is_left else "restore"],
                    known.resource_version,
                )
            )

    def _to_adopt(self, known: Known, paths: list[Path], rendered: Rendered) -> list[Json]:
        """Return the edits that may be left: not those that the database has overtaken."""
        manifest = rendered.manifest(self._naming)
        before = (known.adopted or {}).get("fields", ())
        still = still_adopted(before, manifest)
        overtaken = [field["path"] for field in before if field not in still]
        found = adopted_fields(paths, manifest)
        return [field for field in found if field["path"] not in overtaken]

    def _decide_on_deletion(
        self, written: Written, known: Known, rendered: Rendered, policy: str
    ) -> None:
        written.known = _forgotten(known)
        if policy == "restore":
            return
        written.is_left = True
        if policy == "adopt":
            written.known = replace(written.known, adopted={"gone": rendered.spec_digest})

    def _edits(self, known: Known, found: Json, rendered: Rendered) -> list[Path]:
        wanted = rendered.manifest(self._naming)
        wanted["status"] = rendered.whole_status(
            int(found["metadata"]["generation"]), None, known.transitions
        )
        return edited(
            found,
            wanted,
            managers=(MANAGER, STATUS_MANAGER),
            is_settled=known.spec_digest == rendered.spec_digest,
        )

    def _take_away_surplus(
        self, written: Written, found: Json, rendered: Rendered, policy: str
    ) -> None:
        """Take away fields that others added: an apply leaves them to who set them."""
        wanted = rendered.whole_status(written.known.generation, written.known.observed)
        parts = {"status": surplus(found.get("status") or {}, wanted, "/status")}
        if policy == "restore":
            parts[""] = surplus(found["spec"], rendered.spec, "/spec")
        for sub, steps in parts.items():
            if steps:
                path = self.path(rendered.kind, rendered.name, sub)
                answer = self.client.patch(path, written.known.resource_version, steps)
                about = answer["metadata"]
                written.requests += 1
                written.known = replace(
                    written.known,
                    resource_version=about["resourceVersion"],
                    generation=int(about["generation"]),
                )

    def _write(self, written: Written, rendered: Rendered) -> None:
        known = replace(written.known, name=rendered.name, cluster=self._cluster)
        if known.adopted is not None and "gone" in known.adopted:
            return
        uid = ""
        if known.spec_digest != rendered.spec_digest or not known.resource_version:
            answer, is_new = self._apply_spec(known, rendered)
            about = answer["metadata"]
            uid = about["uid"]
            if is_new and known.resource_version:
                written.is_drifted = True
                written.events.append(
                    self._edit_event(
                        None, rendered, [], OUTCOMES["restore"], known.resource_version
                    )
                )
            known = replace(
                known,
                status_digest="" if is_new else known.status_digest,
                spec_digest=rendered.spec_digest,
                resource_version=about["resourceVersion"],
                generation=int(about["generation"]),
            )
            written.requests += 1
            written.known = known
        status = rendered.whole_status(known.generation, known.observed, known.transitions)
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
                transitions=transitions(status),
            )
            written.requests += 1
        if uid and (event := event_of(known, rendered)):
            written.events.append(self._event(rendered, event, uid))
        written.known = replace(known, reason=reason_of(rendered), is_first=False)

    def _apply_spec(self, known: Known, rendered: Rendered) -> tuple[Json, bool]:
        path = self.path(rendered.kind, rendered.name)
        manifest = rendered.manifest(self._naming)
        if known.resource_version:
            if known.adopted is not None:  # part of an object: never to be made anew
                manifest = without(manifest, known.adopted["fields"])
                manifest["metadata"]["uid"] = known.adopted["uid"]
            manifest["metadata"]["resourceVersion"] = known.resource_version
            return self.client.apply(path, manifest)
        try:
            return self.client.apply(path, manifest, force=False)
        except ObjectChanged:
            found = self.client.get(path)
        if found is not None:
            if not self._is_ours(found):
                raise ObjectRefused(f"{rendered.name} is there and not ours")
            manifest["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        return self.client.apply(path, manifest)

    def _apply_status(self, known: Known, status: Json) -> tuple[Json, bool]:
        manifest = {
            "apiVersion": self._naming.api_version,
            "kind": known.kind.value,
            "metadata": {"name": known.name, "resourceVersion": known.resource_version},
            "status": status,
        }
        path = self.path(known.kind, known.name, "status")
        return self.client.apply(path, manifest, manager=STATUS_MANAGER)

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
            self.client.create(EVENTS_PATH, event)
        except ObjectRefused:
            return

    def _edit_event(
        self,
        found: Json | None,
        rendered: Rendered,
        paths: list[Path],
        outcome: str,
        version: str,
    ) -> Json:
        """Return the Event that says who changed an object, or that it was deleted."""
        about = {} if found is None else found["metadata"]
        entries = about.get("managedFields", [])
        by_others = [one for one in entries if one.get("manager") not in (MANAGER, STATUS_MANAGER)]
        return event_manifest(
            rendered.kind,
            rendered.name,
            self._naming,
            event=("Warning", "HandEdited"),
            message=hand_edit_message(
                {str(one.get("manager")) for one in by_others} or ({"somebody"} if found else ()),
                map(path_text, paths),
                outcome,
            ),
            uid=about.get("uid", ""),
            at=max((str(one.get("time") or "") for one in by_others), default="")
            or about.get("creationTimestamp", ""),
            version=about.get("resourceVersion", version),
        )

    def _is_ours(self, found: Json) -> bool:
        labels = found["metadata"].get("labels") or {}
        return bool(labels.get(self._naming.managed_label) == self._naming.region_value)


def _is_by_us(found: Json) -> bool:
    """Return whether an object that lacks our label was one of ours."""
    entries = found["metadata"].get("managedFields", ())
    return any(entry.get("manager") == MANAGER for entry in entries)


def _forgotten(known: Known) -> Known:
    """Return what is known of an object that is gone, or another's: its name."""
    return replace(known, spec_digest="", status_digest="", resource_version="", adopted=None)
