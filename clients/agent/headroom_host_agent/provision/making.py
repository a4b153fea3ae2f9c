"""Makes one reservation real, or removes it, and keeps what is to be told (spec hosts, B.5, D.8).

Who calls sees to it that two jobs of the same artefacts never run at once.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import replace

from headroom_host_agent.provision.data import Field, fields_of
from headroom_host_agent.provision.documents import digest_of, result_document
from headroom_host_agent.provision.kept import Kept
from headroom_host_agent.provision.options import EngineOptions, Usage
from headroom_host_agent.provision.provisioners import HostContext, Provisioner, ProvisionError
from headroom_host_agent.provision.signing.keys import SigningError
from headroom_host_agent.provision.signing.v2 import canonical_json
from headroom_host_agent.provision.stored import Artifact, Message, Row, State
from headroom_host_agent.provision.units import Units, counter_of, usable_memory_bytes
from headroom_host_agent.provision.wire import EPOCH, Reservation, Result, ResultState
from headroom_host_agent.resources.facts import ResourceType

log = logging.getLogger(__name__)
_NETWORKS = ("network", "network_resource")
_NAME_OF = "name of "  # what artefacts of a reservation carry that took another's over


class Maker:
    """Works on the host through provisioners, and writes what it did to the store.

    Raises:
        StoreError: What provisioners must not forget cannot be read.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._kept = Kept(options.data_dir)

    def runs_as(self, reservation: Reservation, row: Row | None) -> str:
        """Return the id that artefacts of a reservation carry; ``row`` is what is stored of it."""
        kept = self._kept.get(_NAME_OF + reservation.id)
        if kept is not None:
            return kept
        return row.runs_as if row is not None else reservation.reference or reservation.id

    def usage(self) -> Usage:
        """Return what runs, from the store: it cannot drift."""
        units, workloads, networks = Units(), dict[str, int](), set[str]()
        for row in self._options.store.rows():
            if row.state != State.DEPLOYED:
                continue
            kind = row.reservation.type
            provisioner = self._options.provisioners.get(kind)
            if provisioner is not None:
                units += provisioner.units(row.reservation)
            if kind in _NETWORKS:
                name = f"{row.reservation.user_id}\n{_named(row.reservation)}"
                if name in networks:
                    continue
                networks.add(name)
            counter = counter_of(kind) or kind
            workloads[counter] = workloads.get(counter, 0) + 1
        return Usage(units=units, workloads=workloads)

    def provision(self, reservation: Reservation, cancelled: threading.Event) -> None:
        """Make a reservation real and keep its result; one that was is told again.

        Raises:
            ProvisionError: It failed. The result says so.
        """
        store = self._options.store
        row = store.find(reservation.id)
        if row is not None and self._is_told(row, reservation):
            return
        old = store.find(reservation.reference) if reservation.reference else None
        if old is not None and old.state in (State.DEPLOYED, State.FAILED):
            self._migrate(old, reservation)
            return
        runs_as = self.runs_as(reservation, row)
        if not store.begin(reservation, runs_as=runs_as):
            return
        former = None if row is None else row.former
        try:
            data = self._make(
                reservation,
                runs_as,
                cancelled,
                is_made=row is not None and row.made,
                former=former,
            )
        except ProvisionError as error:
            failed = self._result(reservation, ResultState.ERROR, f"{error.code}: {error}")
            self._finish(reservation, failed, keeps_former=former is not None)
            raise
        self._finish(reservation, self._result(reservation, ResultState.OK, "", data))

    def decommission(
        self,
        reservation: Reservation,
        cancelled: threading.Event,
        messages: tuple[Message, ...] = (),
    ) -> None:
        """Remove what a reservation made, and tell ``messages`` and that it is gone.

        Raises:
            ProvisionError: It cannot be removed now.
        """
        store = self._options.store
        row = store.find(reservation.id)
        known = reservation if row is None else row.reservation
        gone = self.message(
            replace(known, attempt=reservation.attempt, fence_epoch=reservation.fence_epoch),
            ResultState.DELETED,
            "",
            kind="deleted",
        )
        if row is not None and row.begun:
            self.remove(row, cancelled)
        store.forget(reservation.id, (*messages, gone))

    def remove(self, row: Row, cancelled: threading.Event) -> None:
        """Remove what a stored reservation made.

        Raises:
            ProvisionError: It cannot be removed now.
        """
        provisioner = self._options.provisioners.get(row.reservation.type)
        if provisioner is None:
            log.error("%s: no provisioner for %s", row.reservation.id, row.reservation.type)
            return
        self._options.store.begin_removal(row.reservation.id)
        context = self.context(self.runs_as(row.reservation, row), row.reservation, cancelled)
        try:
            if row.former is not None:
                provisioner.decommission(context, row.former)
            provisioner.decommission(context, row.reservation)
        except Exception as error:
            raise _as_failure(error) from error

    def die(self, row: Row, reason: str) -> None:
        """Keep a reservation as failed after it was made, and tell that it died."""
        death = self.message(row.reservation, ResultState.ERROR, reason, kind="death")
        result = self._result(row.reservation, ResultState.ERROR, reason)
        self._options.store.finish(replace(row.reservation, result=result), (death,))

    def tell_again(self, identities: Collection[str]) -> None:
        """Tell the results that reservations have: the server lost them, or never got them."""
        for row in self._options.store.rows():
            known = row.reservation
            is_ended = row.state in (State.DEPLOYED, State.FAILED) and not known.result.is_nil
            if known.id in identities and is_ended:
                self._options.store.post(self._told(known, known.result, kind="result"))

    def message(
        self, reservation: Reservation, state: ResultState, text: str, *, kind: str
    ) -> Message:
        """Return what tells of a reservation without data."""
        return self._told(reservation, self._result(reservation, state, text), kind=kind)

    def context(
        self,
        runs_as: str,
        reservation: Reservation,
        cancelled: threading.Event,
        *,
        is_made: bool = False,
    ) -> HostContext:
        """Return what a provisioner may use for a reservation."""

        def intend(kind: str, name: str) -> None:
            self._options.store.intend(
                Artifact(name=name, kind=kind, reservation_id=reservation.id)
            )

        taken: dict[str, int] = {}
        others = []
        for row in self._options.store.rows():
            is_there = row.made or row.state not in (State.QUEUED, State.FAILED)
            is_own = row.reservation.id == reservation.id or row.runs_as == runs_as
            if is_there and not is_own:
                others.append(row.there)
                for name, amount in row.there.resources.items():
                    taken[name] = taken.get(name, 0) + amount
        return HostContext(
            manager=self._options.manager,
            data_dir=self._options.data_dir,
            identity=runs_as,
            taken=taken,
            intend=intend,
            others=tuple(others),
            is_made=is_made,
            keep=self._kept.put,
            kept=self._value_of,
            cancelled=cancelled,
        )

    def _value_of(self, name: str) -> str | None:
        kept = self._kept.get(name)  # agents before this file kept it in the store
        return self._options.store.meta(f"of {name}") if kept is None else kept

    def _is_told(self, row: Row, reservation: Reservation) -> bool:
        """Tell a stored result again; return whether there was one of this very attempt."""
        known = row.reservation
        is_same = row.digest == digest_of(reservation) and known.attempt == reservation.attempt
        if row.state not in (State.DEPLOYED, State.FAILED) or not is_same:
            return False
        if row.runs_as != known.id:
            self._kept.put(_NAME_OF + known.id, row.runs_as)
        if not known.result.is_nil:
            self._options.store.post(self._told(known, known.result, kind="result"))
        return True

    def _make(
        self,
        reservation: Reservation,
        runs_as: str,
        cancelled: threading.Event,
        *,
        is_made: bool,
        former: Reservation | None,
    ) -> bytes:
        """Call the provisioner and return the data of the result.

        Args:
            former: What is on the host and stays there if the change of it fails.

        Raises:
            ProvisionError: It cannot be made, or failed and was removed again; what was there
                before a change is as it was.
        """
        provisioner = self._checked(reservation)
        context = self.context(runs_as, reservation, cancelled, is_made=is_made)
        try:
            provisioner.check(context, reservation)
            data = canonical_json(provisioner.provision(context, reservation))
            self._check_in_time(cancelled)
        except Exception as error:
            failure = _as_failure(error)
            if former is None:
                left = self._compensate(provisioner, context, reservation)
                more = f"; what it left cannot be removed: {left}" if left else ""
            else:
                left = self._restore(provisioner, context, former)
                more = f"; what was before is not as it was: {left}" if left else ""
            raise ProvisionError(failure.code, f"{failure}{more}") from error
        return data

    def _check_in_time(self, cancelled: threading.Event) -> None:
        if cancelled.is_set():
            seconds = self._options.job_seconds
            raise ProvisionError("deadline", f"it took longer than {seconds:g} s")

    def _checked(self, reservation: Reservation) -> Provisioner:
        """Return the provisioner of a reservation that may be made.

        Raises:
            ProvisionError: It may not.
        """
        if reservation.node_id != self._options.host_id:
            raise ProvisionError("wrong_host", f"it is for the host {reservation.node_id!r}")
        if reservation.duration_ns <= 0:
            raise ProvisionError("no_duration", "it has no duration")
        if reservation.created <= EPOCH:
            raise ProvisionError("no_creation", "it does not say when it was created")
        provisioner = self._options.provisioners.get(reservation.type)
        if provisioner is None:
            raise ProvisionError("unsupported", f"type not supported: {reservation.type}")
        schema: Mapping[str, Field] | None = getattr(provisioner, "data_schema", None)
        if schema is not None:
            fields_of(reservation, schema)
        self._check_memory(provisioner.units(reservation).mru)
        return provisioner

    def _check_memory(self, asked_bytes: int) -> None:
        if asked_bytes <= 0:
            return
        total_bytes = self._options.manager.capacity(ResourceType.MEMORY).amount
        used_bytes = self.usage().units.mru
        if used_bytes + asked_bytes > usable_memory_bytes(total_bytes):
            raise ProvisionError("no_memory", "not enough free memory")

    def _compensate(
        self, provisioner: Provisioner, context: HostContext, reservation: Reservation
    ) -> str:
        """Remove what a failure left; return why that is impossible, empty when it is done."""
        calm = replace(context, cancelled=threading.Event())
        try:
            provisioner.decommission(calm, reservation)
        except Exception as error:
            log.exception("%s: what it left cannot be removed", reservation.id)
            return str(_as_failure(error))
        return ""

    def _restore(self, provisioner: Provisioner, context: HostContext, former: Reservation) -> str:
        """Make again what a change that failed was to replace; return why that is impossible."""
        calm = replace(context, cancelled=threading.Event())
        try:
            provisioner.provision(calm, former)
        except Exception as error:
            log.exception("%s: what was before cannot be restored", former.id)
            return str(_as_failure(error))
        return ""

    def _migrate(self, old: Row, reservation: Reservation) -> None:
        """Take over what another reservation made.

        Raises:
            ProvisionError: It would have to be made anew: its content differs.
        """
        former = old.reservation
        if former.type != reservation.type or (
            former.data != reservation.data and reservation.type != "network"
        ):
            error = ProvisionError("content_differs", f"the content of {former.id} differs")
            self._finish(reservation, self._result(reservation, ResultState.ERROR, str(error)))
            raise error
        result = self._result(
            reservation, former.result.state, former.result.message, former.result.data
        )
        message = self._told(reservation, result, kind="result")
        self._kept.put(_NAME_OF + reservation.id, old.runs_as)
        self._options.store.migrate(former.id, replace(reservation, result=result), (message,))

    def _finish(
        self, reservation: Reservation, result: Result, *, keeps_former: bool = False
    ) -> None:
        message = self._told(reservation, result, kind="result")
        finished = replace(reservation, result=result)
        self._options.store.finish(finished, (message,), keeps_former=keeps_former)

    def _result(
        self, reservation: Reservation, state: ResultState, message: str, data: bytes = b"null"
    ) -> Result:
        return Result(
            type=reservation.type,
            id=reservation.id,
            created=self._options.now() or reservation.created,
            state=state,
            message=message,
            data=data,
        )

    def _told(self, reservation: Reservation, result: Result, *, kind: str) -> Message:
        body = self._options.sign(result_document(reservation, result))
        return Message(key=f"{reservation.id}:{reservation.attempt}:{kind}", body=body)


def _named(reservation: Reservation) -> str:
    data = json.loads(reservation.data or b"null")
    return str(data.get("name", "")) if isinstance(data, dict) else ""


def _as_failure(error: Exception) -> ProvisionError:
    if isinstance(error, ProvisionError):
        return error
    if isinstance(error, SigningError):
        return ProvisionError("bad_result", f"the result cannot be signed: {error}")
    log.error("a provisioner broke", exc_info=error)
    return ProvisionError("broken", f"{type(error).__name__}: {error}")
