"""VMs leave hosts that are to become empty, as Nova is asked to (spec hosts, C.3, Eviction).

Nova is the truth of where VMs are: each look reads them anew, then asks for one thing at most of
each host. The VM is noted before Nova is asked, so who dies in between leaves one that is looked
at again. No call stands in a transaction.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from hosts.clients.listing import COMPUTE, CloudUnreachable, CloudWriter, Json, Refusal, listed
from hosts.domain.evicting import LeavingVM, Step, Told, how_it_moves, next_to_move
from hosts.models import Eviction, Maintenance
from journal.actors import Actor
from journal.clock import database_now
from journal.services import Change, record_changes

#: When a VM that did not move has its next turn.
AGAIN: Final = timedelta(minutes=5)
#: Hosts whose turn would begin later wait for the next look.
MOST_SECONDS: Final = 30.0
LONGEST_REASON: Final = 255
#: How Nova is asked; a live migration copies no disk.
ACTIONS: Final[dict[Step, Json]] = {
    Step.LIVE: {"os-migrateLive": {"host": None, "block_migration": False}},
    Step.COLD: {"migrate": None},
    Step.CONFIRM: {"confirmResize": None},
}


def move_vms(cloud: CloudWriter, *, actor: Actor, request_id: str) -> dict[str, int]:
    """Ask Nova for the next step of each host that is to become empty; return how many stand how.

    A host for which Nova cannot be asked keeps why, and the others go on: who was asked about
    longest ago is first, so that hosts that take long take no turn from others. The service of one
    that is in service again is enabled, if it was disabled for this.
    """
    found: Counter[str] = Counter()
    until = time.monotonic() + MOST_SECONDS
    is_ours = Q(closed_at=None) | Q(service_disabled=True)
    rows = Eviction.objects.filter(is_ours).select_related("host")
    for row in rows.order_by(F("asked_at").asc(nulls_first=True), "pk"):
        if time.monotonic() > until:
            break
        Eviction.objects.filter(pk=row.pk).update(asked_at=Now())  # whatever becomes of it
        leaving = _Leaving(cloud, row, actor=actor, request_id=request_id)
        try:
            stands, trouble = leaving.go_on(), ""
        except CloudUnreachable as error:
            stands, trouble = "unreachable", error.message
        if trouble != row.trouble:
            leaving.keep(trouble=trouble)
        found[stands] += 1
    return dict(found)


class _Leaving:
    """One host that VMs leave."""

    def __init__(self, cloud: CloudWriter, row: Eviction, *, actor: Actor, request_id: str) -> None:
        self._cloud, self._row = cloud, row
        self._actor, self._request_id = actor, request_id
        self._host = row.host.service_host or row.host.name

    def go_on(self) -> str:
        """Take the next step; return how it stands.

        Raises:
            CloudUnreachable: Nova cannot be asked.
        """
        row = self._row
        match row.host.maintenance:
            case Maintenance.HA:
                return "left to others"
            case Maintenance.NONE:
                if row.service_disabled:
                    self._set_service("enabled")
                    self.keep(service_disabled=False)
                return "in service"
        if row.closed_at is not None:
            return "empty"
        if self._set_service("disabled"):
            return "disabled"
        if row.moving_uuid and self._still_moves():
            return "moving"
        return self._next_leaves()

    def _still_moves(self) -> bool:
        """Look at the VM that was told to move; return whether it is under way."""
        uuid = self._row.moving_uuid
        vm = self._vm(uuid)
        match how_it_moves(vm, host=self._host):
            case Told.MOVES:
                return True
            case Told.CONFIRM:
                self._ask(uuid, Step.CONFIRM)
                return True
            case Told.FAILED:
                self._fail(
                    uuid, "it is in an error" if vm and vm.status == "ERROR" else "it stayed"
                )
            case Told.LEFT:
                left = {key: facts for key, facts in self._row.failed.items() if key != uuid}
                self.keep(moving_uuid="", failed=left)
        return False

    def _next_leaves(self) -> str:
        row, now = self._row, database_now()
        failed = {
            uuid
            for uuid, facts in row.failed.items()
            if datetime.fromisoformat(facts["at"]) > now - AGAIN
        }
        vm = next_to_move(self._vms(), failed=failed)
        if vm is None:
            return "waiting"
        free = Eviction.objects.filter(pk=row.pk, closed_at=None, moving_uuid="")
        if not free.update(moving_uuid=vm.uuid):
            return "waiting"  # another process is at it, or the order is over
        refusal = self._ask(vm.uuid, vm.step)
        if refusal is not None:
            self._fail(vm.uuid, f"Nova refuses ({refusal.status}): {refusal.message}")
            return "refused"
        self._record("vm_told_to_leave", "vm", vm.uuid, {"by": vm.step.value})
        return "moving"

    def keep(self, **facts: Any) -> None:  # Any: of the model
        """Write some fields of the order."""
        Eviction.objects.filter(pk=self._row.pk).update(**facts)
        for name, value in facts.items():
            setattr(self._row, name, value)

    def _set_service(self, status: str) -> bool:
        """Have Nova's service of the host take VMs or none; return whether that was new."""
        query = urlencode({"host": self._host, "binary": "nova-compute"})
        services, _ = listed(self._cloud, COMPUTE, f"/os-services?{query}", "services")
        others = [one for one in services if one.get("status") != status]
        reason = f"{self._row.host.maintenance}: {self._row.reason}"[:LONGEST_REASON]
        for one in others:
            path = f"/os-services/{quote(str(one['id']))}"
            body = {"status": status}
            if status == "disabled":
                self.keep(service_disabled=True)
                body["disabled_reason"] = reason
            refusal = self._cloud.change(COMPUTE, "PUT", path, body)
            if refusal is not None:
                raise CloudUnreachable(
                    f"{COMPUTE} {path}: Nova refuses ({refusal.status}): {refusal.message}",
                    service=COMPUTE,
                    path=path,
                )
            self._record(f"host_service_{status}", "host", self._row.host.name, {})
        return bool(others)

    def _vms(self) -> list[LeavingVM]:
        query = urlencode({"all_tenants": "true", "host": self._host, "limit": 1000})
        found, _ = listed(self._cloud, COMPUTE, f"/servers/detail?{query}", "servers")
        return [_vm_of(one) for one in found]

    def _vm(self, uuid: str) -> LeavingVM | None:
        body = self._cloud.get(COMPUTE, f"/servers/{quote(uuid)}")
        return None if body is None else _vm_of(body["server"])

    def _ask(self, uuid: str, step: Step) -> Refusal | None:
        path = f"/servers/{quote(uuid)}/action"
        return self._cloud.change(COMPUTE, "POST", path, ACTIONS[step])

    def _fail(self, uuid: str, why: str) -> None:
        failed = {**self._row.failed, uuid: {"at": database_now().isoformat(), "reason": why}}
        self.keep(moving_uuid="", failed=failed)

    def _record(
        self, action: str, object_type: str, object_id: str, after: dict[str, object]
    ) -> None:
        change = Change(
            action=action,
            object_type=object_type,
            object_id=object_id,
            after={**after, "host": self._row.host.name},
            reason=self._row.reason,
        )
        with transaction.atomic():
            record_changes([change], actor=self._actor, request_id=self._request_id)


def _vm_of(server: Json) -> LeavingVM:
    return LeavingVM(
        uuid=str(server["id"]),
        host=str(server.get("OS-EXT-SRV-ATTR:host") or ""),
        status=str(server.get("status", "UNKNOWN")),
        task_state=str(server.get("OS-EXT-STS:task_state") or ""),
        power_state=int(server.get("OS-EXT-STS:power_state") or 0),
    )
