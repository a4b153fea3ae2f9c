"""Everything that runs in an agent, put together (spec hosts, D.9, D.10)."""

from __future__ import annotations

import json
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from headroom_host_agent.files import replace_file
from headroom_host_agent.process.health import Health
from headroom_host_agent.process.metrics import Jobs
from headroom_host_agent.process.notify import Systemd
from headroom_host_agent.process.observer import Observer
from headroom_host_agent.process.orders import Orders
from headroom_host_agent.process.poller import RestPoller
from headroom_host_agent.process.rotation import rotate
from headroom_host_agent.process.settings import AgentSettings, LeaseLoss
from headroom_host_agent.process.teller import RestFeedback, written
from headroom_host_agent.provision.engine import Engine
from headroom_host_agent.provision.feedback import Sender
from headroom_host_agent.provision.janitor import Host, Report, ServerKnowledge, cleanup_resources
from headroom_host_agent.provision.options import EngineOptions, Usage
from headroom_host_agent.provision.provisioners import HostContext, Provisioner, ProvisionError
from headroom_host_agent.provision.sources import (
    CombinedSource,
    ExpirySource,
    PollSource,
)
from headroom_host_agent.provision.store import SqliteStore
from headroom_host_agent.provision.stored import Artifact, State, StoreError
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.resources.facts import InstanceAllocation
from headroom_host_agent.resources.manager import Manager
from headroom_host_agent.resources.tree import SYSTEM
from headroom_host_agent.server.client import Client
from headroom_host_agent.server.heart import Heart
from headroom_host_agent.server.identity import Enrolled
from headroom_host_agent.server.reporter import Reporter

log = logging.getLogger(__name__)
FLUSH_SECONDS = 5.0
#: In the data folder: which version is wanted here, for the host's package manager.
WANTED_VERSION = "wanted-version"
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+!~_-]{0,63}", re.ASCII)
_LOOK_SECONDS = 1.0
_JITTER_SECONDS = 15 * 60
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What an agent is made of.

    Attributes:
        provisioners: By type.
        failed_provisioners: Type -> why it cannot be had.
        instances: Lists VMs; None where nothing does.
    """

    settings: AgentSettings
    folder: Path
    manager: Manager
    client: Client
    enrolled: Enrolled
    store: SqliteStore
    provisioners: Mapping[str, Provisioner]
    failed_provisioners: Mapping[str, str] = field(default_factory=dict)
    instances: Callable[[], Iterable[InstanceAllocation]] | None = None
    sysroot: Path = SYSTEM
    boot_id: str = ""
    takes_over: bool = False


class Agent:
    """One agent. What it made stays when it ends, when its lease ends, and when it is not reached.

    ``run`` ends when it is stopped or when a part of it cannot go on.
    """

    def __init__(self, parts: Parts, *, systemd: Systemd | None = None) -> None:
        self.parts = parts
        self._systemd = systemd or Systemd()
        self.stop = threading.Event()
        self._raised: list[Exception] = []
        self.jobs = Jobs()
        self.readiness: Mapping[str, object] = {}
        self.wanted_version: str | None = None  # until a heartbeat was answered
        self.orders = Orders(
            {
                "report": self._report_all,
                "resync": self._resync,
                "cleanup": self._request_cleanup,
                "rotate-key": self._rotate_key,
            }
        )
        self.heart = Heart(
            parts.client,
            parts.enrolled,
            boot_id=parts.boot_id,
            takes_over=parts.takes_over,
            outbox_depth=parts.store.outbox_depth,
            is_resynced=lambda: not parts.store.is_resyncing,
            heard=self._heard,
            done=self.orders.done,
        )
        self.reporter = Reporter(
            parts.manager,
            parts.client,
            parts.enrolled,
            interval_seconds=parts.settings.report_interval_seconds,
            health=self._look,
        )
        self._health = Health(
            sysroot=parts.sysroot,
            uplink=parts.settings.uplink_interface,
            offset_seconds=parts.client.offset_seconds,
        )
        self.observer = Observer(
            parts.client,
            parts.enrolled,
            instances=parts.instances,
            usage=self._usage,
            interval_seconds=parts.settings.report_interval_seconds,
        )
        self.poller = RestPoller(
            parts.client,
            parts.enrolled,
            parts.store,
            order={name: one.order for name, one in parts.provisioners.items()},
            resynced=self._resynced,
        )
        self.engine = self._engine()
        self.sender = Sender(parts.store, RestFeedback(parts.client, parts.enrolled))
        self._lease_lost_at: float | None = time.monotonic()
        self._released: set[str] = set()

    def run(self, *beside: Callable[[threading.Event], None]) -> None:
        """Run until ``stop`` is set or a part ends.

        Args:
            beside: What else runs until then, a thread each.

        Raises:
            Exception: What a part raised first.
        """
        parts = self.parts
        persistent = {name for name, one in parts.provisioners.items() if one.persistent}
        if parts.boot_id and parts.store.boot(parts.boot_id, persistent=persistent):
            log.warning("the host was booted: what does not outlive that is made again")
        quiet = threading.Event()
        loops: Mapping[str, Callable[[], None]] = {
            "heart": lambda: self.heart.run(self.stop),
            "reporter": lambda: self.reporter.run(self.stop),
            "observer": lambda: self.observer.run(self.stop),
            "watch": self._watch,
            "verifier": self._watch_made,
            "engine": lambda: self.engine.run(self.stop),
        }
        threads = {name: self._start(name, loop) for name, loop in loops.items()}
        for number, loop in enumerate(beside):
            name = f"beside {number}"
            threads[name] = self._start(name, partial(loop, self.stop))
        sender = self._start("sender", lambda: self.sender.run(quiet))
        self._systemd.ready()
        while not self.stop.wait(_LOOK_SECONDS):
            continue  # a wait without an end would not let signals through
        self._systemd.stopping()
        self.report_soon()
        parts.client.close()
        threads.pop("engine").join()
        quiet.set()
        parts.store.posted.set()
        self._flush(sender)
        for thread in threads.values():
            thread.join(_LOOK_SECONDS)
        if self._raised:
            raise self._raised[0]

    def report_soon(self) -> None:
        """Report at once: something on the host changed."""
        self.reporter.report_soon()
        self.observer.look_soon()

    def clean_up(self, *, dry_run: bool) -> Report:
        """Remove what was left behind, or say what would be."""
        parts = self.parts
        context = HostContext(
            manager=parts.manager,
            data_dir=parts.folder,
            identity="",
            taken={},
            intend=lambda *_: None,
        )
        found = [one for each in parts.provisioners.values() for one in each.artifacts(context)]
        host = Host(
            registered=parts.store.artifacts(),
            found=found,
            in_use=self._is_in_use,
            ask=self._ask,
            remove=self._remove,
            needs_confirmation=parts.store.needs_confirmation,
        )
        return cleanup_resources(host, dry_run=dry_run, most=parts.settings.cleanup_most)

    def verify(self) -> list[tuple[str, str, bool]]:
        """Return id, type and whether it is as it was made, of all that runs."""
        verified = []
        for row in self.parts.store.rows():
            provisioner = self.parts.provisioners.get(row.reservation.type)
            if row.state == State.DEPLOYED and provisioner is not None:
                context = self.engine.context(row)
                is_there = provisioner.verify(context, row.reservation)
                verified.append((row.reservation.id, row.reservation.type, is_there))
        return verified

    def _engine(self) -> Engine:
        parts, chosen = self.parts, self.parts.settings
        store, client = parts.store, parts.client
        host_id = parts.enrolled.identity.host_id
        polls = PollSource(
            self.poller,
            host_id,
            min_interval_seconds=chosen.poll_interval_seconds,
            start=0 if store.is_resyncing else store.cursor + 1,
        )
        ends = ExpirySource(_Ends(store, client), interval_seconds=chosen.expire_interval_seconds)
        source = CombinedSource(_Guarded(polls, self._failed), ends)
        return Engine(
            EngineOptions(
                host_id=host_id,
                source=source,
                store=store,
                provisioners=parts.provisioners,
                manager=parts.manager,
                data_dir=parts.folder,
                sign=written,
                now=client.now,
                cleanup=self._clean_up,
                job_seconds=chosen.job_deadline_seconds,
                may_begin=self._may_begin,
                may_remove=self._may_remove,
                alive=self._systemd.alive,
                on_job=self.jobs.add,
                on_usage=lambda _: self.observer.look_soon(),
            )
        )

    def _may_begin(self, reservation: Reservation) -> bool:
        """Return whether the lease runs, and the server asked for it in this epoch and history.

        While all is compared nothing is begun: what is asked for may be here under another id.
        """
        store = self.parts.store
        row = store.find(reservation.id)
        if row is None or row.is_forgotten or store.is_resyncing:
            return False
        epoch = self.parts.enrolled.identity.fence_epoch
        return row.reservation.fence_epoch >= epoch and self.heart.holds_lease()

    def _may_remove(self) -> bool:
        """Return whether the lease runs or need not, and all that there is was compared."""
        if self.parts.store.is_resyncing:
            return False  # what is to stay may not be known yet
        is_held = self.parts.settings.on_lease_loss is LeaseLoss.HOLD
        return not is_held or self.heart.holds_lease()

    def _usage(self) -> Usage:
        return self.engine.usage()

    def _look(self) -> list[dict[str, object]]:
        findings = self._health.look()
        for finding in findings:
            if not finding.ok:
                log.warning("%s", finding.message)
        return [finding.to_json() for finding in findings]

    def _heard(self, answer: Mapping[str, object]) -> None:
        self.parts.enrolled.trust(answer.get("server_public_keys"))
        timeline = str(answer.get("timeline") or "")
        if timeline and self.parts.store.follow_timeline(timeline):
            log.warning("the server's history is another: all is compared")
            self.parts.client.cut()
        readiness = answer.get("readiness")
        if isinstance(readiness, dict) and readiness != self.readiness:
            self.readiness = readiness
            log.info("the host as the server sees it: %s", json.dumps(readiness))
        self._want(answer.get("wanted_version"))
        self.orders.take(answer.get("commands"))

    def _want(self, told: object) -> None:
        """Keep which version is wanted here, for whoever installs it: this agent never does."""
        wanted = told if isinstance(told, str) and _VERSION.fullmatch(told) else ""
        if wanted == self.wanted_version:
            return
        path = self.parts.folder / WANTED_VERSION
        try:
            replace_file(path, f"{wanted}\n") if wanted else path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: %s", path, error.strerror or error)
            return
        self.wanted_version = wanted
        log.info("the version that is wanted here: %s", wanted or "any")

    def _report_all(self) -> None:
        self.observer.forget()
        self.report_soon()

    def _request_cleanup(self) -> None:
        self.engine.request_cleanup()

    def _rotate_key(self) -> None:
        rotate(self.parts.folder, self.parts.client, self.parts.enrolled)

    def _resync(self) -> None:
        self.parts.store.begin_resync()
        self.parts.client.cut()

    def _resynced(self, untold: frozenset[str]) -> None:
        self.heart.beat()
        self.engine.tell_again(untold)
        self.engine.take_up()

    def _watch(self) -> None:
        """Notice that the lease ended or runs again, and when it is time to clean up."""
        next_cleanup = _next_cleanup(datetime.now().astimezone(), self.parts.settings)
        while not self.stop.wait(_LOOK_SECONDS):
            self._watch_lease()
            now = datetime.now().astimezone()
            if now >= next_cleanup:
                self.engine.request_cleanup()
                next_cleanup = _next_cleanup(now, self.parts.settings)

    def _watch_made(self) -> None:
        """Look again and again whether what was made is as it was made."""
        while not self.stop.wait(self.parts.settings.verify_interval_seconds):
            for row in self.parts.store.rows():
                if self.stop.is_set() or not self.heart.holds_lease():
                    break
                if row.state == State.DEPLOYED:
                    self._look_at(row.reservation.id)

    def _look_at(self, identity: str) -> None:
        try:
            if not self.engine.look_at(identity):
                log.error("%s is not any more as it was made: Headroom is told", identity)
        except Exception as error:  # noqa: BLE001 - of a plug-in: nothing is known of this one
            log.warning("%s cannot be looked at: %s", identity, error)

    def _watch_lease(self) -> None:
        if self.heart.holds_lease():
            if self._lease_lost_at is not None:
                self._lease_lost_at = None
                self._released.clear()
                self.engine.take_up()
                self.observer.look_soon()  # what could not be told before
                log.info("the lease runs")
            return
        if self._lease_lost_at is None:
            log.warning("the lease ended: nothing is begun until it runs again")
            self._lease_lost_at = time.monotonic()
        chosen = self.parts.settings
        lost_seconds = time.monotonic() - self._lease_lost_at
        is_late = lost_seconds >= chosen.release_after_seconds
        if chosen.on_lease_loss is LeaseLoss.RELEASE and is_late:
            self._release()

    def _release(self) -> None:
        for row in self.parts.store.rows():
            provisioner = self.parts.provisioners.get(row.reservation.type)
            is_there = row.state == State.DEPLOYED and row.reservation.id not in self._released
            if is_there and provisioner is not None and not provisioner.persistent:
                log.warning("%s is released: the lease ended", row.reservation.id)
                self._released.add(row.reservation.id)
                try:
                    self.engine.release(row.reservation.id, "released: the lease ended")
                except (ProvisionError, StoreError) as error:
                    log.warning("%s stays: %s", row.reservation.id, error)

    def _clean_up(self) -> None:
        self.clean_up(dry_run=False)

    def _ask(self, identity: str) -> ServerKnowledge:
        self._systemd.alive()  # a cleanup asks for each artefact in turn
        return self.poller.ask(identity)[0]

    def _provisioner_of(self, artifact: Artifact) -> Provisioner:
        row = self.parts.store.find(artifact.reservation_id)
        kind = artifact.kind if row is None else row.reservation.type
        provisioner = self.parts.provisioners.get(kind)
        if provisioner is None:
            raise ProvisionError("unsupported", f"no provisioner for {kind}")
        return provisioner

    def _is_in_use(self, artifact: Artifact) -> bool:
        return self._provisioner_of(artifact).in_use(artifact)

    def _remove(self, artifact: Artifact) -> None:
        row = self.parts.store.find(artifact.reservation_id)
        if row is not None:
            self.engine.decommission(row.reservation)
            return
        self._provisioner_of(artifact).remove(artifact)
        self.parts.store.drop_artifact(artifact)

    def _start(self, name: str, loop: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                loop()
            except Exception as error:  # noqa: BLE001 - raised by ``run``
                self._failed(error)
            if name != "sender":
                self.stop.set()

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def _failed(self, error: Exception) -> None:
        self._raised.append(error)
        self.stop.set()

    def _flush(self, sender: threading.Thread) -> None:
        """Tell what waits, for some seconds; what is left is told by the next run."""
        sender.join(FLUSH_SECONDS)
        if sender.is_alive():
            return
        flush = threading.Thread(target=self.sender.flush, name="flush", daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)


@dataclass(frozen=True, slots=True)
class _Ends:
    """What has ended by the server's time; nothing while that is unknown."""

    store: SqliteStore
    client: Client

    def get_expired(self) -> tuple[Reservation, ...]:
        return self.store.get_expired(self.client.now())


@dataclass(frozen=True, slots=True)
class _Guarded:
    """Polls whose failure ends the agent, which would go on with what ends otherwise."""

    polls: PollSource
    failed: Callable[[Exception], None]

    def run(self, stop: threading.Event, emit: Callable[..., None]) -> None:
        try:
            self.polls.run(stop, emit)
        except Exception as error:  # noqa: BLE001 - raised by the agent
            self.failed(error)


def _next_cleanup(now: datetime, settings: AgentSettings) -> datetime:
    """Return the next time of the local day, a quarter of an hour more or less by chance."""
    hour, minute = divmod(settings.cleanup_minute, 60)
    at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    chance = timedelta(seconds=random.uniform(-_JITTER_SECONDS, _JITTER_SECONDS))  # noqa: S311
    while at + chance <= now + timedelta(seconds=_JITTER_SECONDS):
        at += _DAY
    return at + chance
