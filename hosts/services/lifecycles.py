"""Hosts come into service and leave it through Nova, where that is set (spec hosts, C.3).

Nova and Placement are the truth: each look reads them anew, then does one thing. What is done twice
is harmless, so who dies in between leaves a host that is looked at again. No call stands in a
transaction. Locks: one host's row, then its life cycle.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from hosts.agents.hooks import count_held
from hosts.agents.models import HostAgent
from hosts.clients.listing import CloudUnreachable, CloudWriter
from hosts.domain.lifecycle import (
    OVER,
    Act,
    Do,
    Found,
    Phase,
    Wanted,
    next_offboarding_act,
    next_onboarding_act,
)
from hosts.models import Host, HostLifecycle, Instance, LifecycleKind, Maintenance
from hosts.services.compute_host import ComputeHost, TrialPlan
from hosts.services.host_orders import HostSpeaksForItself, UnknownHost, lock_host
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import HeadroomError, InvalidInput
from journal.services import Change, record_changes

#: Hosts whose turn would begin later wait for the next look.
MOST_SECONDS: Final = 30.0
#: What is done of one host in one look at most.
MOST_ACTS: Final = 8
KEPT: Final = timedelta(days=30)
MOST_NAMES: Final = 100
LONGEST_NAME: Final = 255
LONGEST_WHY: Final = 500
#: After these Nova needs time.
_THEN_WAITS: Final = frozenset({Do.WAIT, Do.BOOT_TEST_VM, Do.DELETE_TEST_VM})
_BATCH: Final = 5000
_ABORTING: Final = Q(kind=LifecycleKind.IN, phase=Phase.ABORTING.value)
_OURS: Final = ("Onboarding", "Ready")


class OnboardingRefused(HeadroomError):  # noqa: N818 - a state of the host
    """The host is not brought in: it is in service, on its way out, or that is not set."""

    code = "onboarding_refused"
    status = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class OnboardingOrder:
    """How a host is to be once it is in service.

    Attributes:
        aggregates: Names, its zone's included; none leaves it where it is.
        traits: That its resource provider gets.
        high_availability: Whether its VMs are to start elsewhere when it dies.
    """

    aggregates: tuple[str, ...] = ()
    traits: tuple[str, ...] = ()
    skips_tests: bool = False
    high_availability: bool = True


def order_onboarding(
    name: str, order: OnboardingOrder, *, actor: Actor, request_id: str, reason: str
) -> HostLifecycle:
    """Have a host brought into service; one that is on its way goes on as it was ordered first.

    Until it is there, it takes no VM that Headroom places, and no slot.

    Raises:
        InvalidInput: There is no reason, or a name is none.
        UnknownHost: No list has the host yet.
        HostSpeaksForItself: An object of its own is brought in by whoever keeps that.
        OnboardingRefused: See there.
    """
    if not reason.strip():
        raise InvalidInput("a reason is needed", field="reason")
    for field, names in (("aggregates", order.aggregates), ("traits", order.traits)):
        if len(names) > MOST_NAMES or not all(
            0 < len(one) <= LONGEST_NAME and one.isprintable() for one in names
        ):
            raise InvalidInput(f"{field} must be at most {MOST_NAMES} names", field=field)
    chosen = settings.HEADROOM.feed
    with transaction.atomic():
        host = _locked(name)
        open_one = HostLifecycle.objects.filter(host_name=name, closed_at=None).first()
        if open_one is not None and open_one.kind == LifecycleKind.IN:
            if open_one.phase == Phase.ABORTING:
                raise OnboardingRefused(f"{name}: it is being aborted still", host=name)
            return open_one
        if problem := _problem(host, order):
            raise OnboardingRefused(f"{name}: {problem}", host=name)
        if open_one is not None:
            _end_way_out(open_one, actor=actor, request_id=request_id)
        wanted = Wanted(
            aggregates=tuple(sorted(set(order.aggregates))),
            traits=tuple(sorted(set(order.traits))),
            skips_tests=order.skips_tests,
            test_aggregate=chosen.test_aggregate,
        )
        row = HostLifecycle.objects.create(
            host_name=name,
            kind=LifecycleKind.IN,
            phase=Phase.INITIAL.value,
            wanted=asdict(wanted) | {"high_availability": order.high_availability},
            service_host=host.service_host or name,
            provider_uuid=host.provider_uuid or host.openstack_id,
            reason=reason,
            opened_by=actor.name,
        )
        _state_conditions(host, row)
        facts = {**row.wanted, "phase": row.phase}
        _record("host_onboarding_ordered", row, facts, actor=actor, request_id=request_id)
    return row


def abort_onboarding(name: str, *, actor: Actor, request_id: str, reason: str) -> HostLifecycle:
    """Have a host brought in no further; its test VMs are deleted, and it takes nothing.

    Raises:
        InvalidInput: There is no reason.
        OnboardingRefused: It is not on its way in.
    """
    if not reason.strip():
        raise InvalidInput("a reason is needed", field="reason")
    with transaction.atomic():
        row = (
            HostLifecycle.objects.select_for_update(no_key=True)
            .filter(host_name=name, kind=LifecycleKind.IN, closed_at=None)
            .first()
        )
        if row is None:
            raise OnboardingRefused(f"{name} is not being brought in", host=name)
        if row.phase != Phase.ABORTING:
            row.phase = Phase.ABORTING.value
            row.save(update_fields=["phase"])
            _record(
                "host_onboarding_aborting", row, {}, actor=actor, request_id=request_id, why=reason
            )
    return row


def run_lifecycles(
    cloud: CloudWriter, *, actor: Actor, request_id: str, brings_in: bool, takes_out: bool
) -> dict[str, int]:
    """Do what comes next of each host that comes or goes; return how many stand how.

    A host of which the cloud cannot be asked keeps why, and the others go on. A way in that an
    operator or the way out aborts is ended also where none is brought in any more.
    """
    looked_at = Q(kind=LifecycleKind.IN) if brings_in else _ABORTING
    if takes_out:
        _open_offboardings(actor=actor, request_id=request_id)
        is_to_go = Q(Exists(_leaving().filter(name=OuterRef("host_name"))))
        looked_at |= is_to_go | Q(kind=LifecycleKind.OUT)
    found: Counter[str] = Counter()
    until = time.monotonic() + MOST_SECONDS
    rows = HostLifecycle.objects.filter(looked_at, closed_at=None)
    for row in rows.order_by(F("looked_at").asc(nulls_first=True), "pk"):
        if time.monotonic() > until:
            break
        found[_Way(cloud, row, actor=actor, request_id=request_id).go_on()] += 1
    return dict(found)


def has_aborts() -> bool:
    """Return whether a host is to be brought in no further, and may have test VMs still."""
    return HostLifecycle.objects.filter(_ABORTING, closed_at=None).exists()


def prune_lifecycles() -> int:
    """Forget those that ended 30 days ago; return how many."""
    old = HostLifecycle.objects.filter(closed_at__lt=database_now() - KEPT).order_by("pk")
    keys = list(old.values_list("pk", flat=True)[:_BATCH])
    HostLifecycle.objects.filter(pk__in=keys).delete()
    return len(keys)


class _Way:
    """One host that comes or goes."""

    def __init__(
        self, cloud: CloudWriter, row: HostLifecycle, *, actor: Actor, request_id: str
    ) -> None:
        self._row, self._actor, self._request_id = row, actor, request_id
        chosen = settings.HEADROOM.feed
        plan = TrialPlan(
            name=f"headroom-test-{row.pk}",
            flavor=chosen.test_flavor,
            image=chosen.test_image,
            network=chosen.test_network,
        )
        self._nova = ComputeHost(
            cloud, row.service_host, provider_uuid=row.provider_uuid, test=plan
        )

    def go_on(self) -> str:
        """Do what comes next, as long as nothing has to be waited for; return how it stands."""
        waits_for, trouble = "", ""
        try:
            for _ in range(MOST_ACTS):
                act = self._next()
                if act is None:
                    return self._row.phase
                trouble = self._carry_out(act)
                waits_for = act.why if act.do is Do.WAIT else ""
                if trouble or act.do in _THEN_WAITS:
                    break
        except CloudUnreachable as error:
            trouble = error.message
        self._keep(waits_for=waits_for[:LONGEST_WHY], trouble=trouble[:LONGEST_WHY])
        return "trouble" if trouble else self._row.phase

    def _next(self) -> Act | None:
        """Return what comes next of the row as it is now; None when it is over."""
        row = self._row
        row.refresh_from_db()
        if row.closed_at is not None:
            return None
        host = Host.objects.filter(name=row.host_name).first()
        is_leaving = host is not None and host.maintenance == Maintenance.TERMINATION
        if row.kind == LifecycleKind.OUT:
            if host is not None and not is_leaving:
                return Act(do=Do.ADVANCE, target=Phase.ABORTED)
            return next_offboarding_act(self._found(host), now=database_now())
        if host is None and row.phase != Phase.ABORTING:
            return Act(do=Do.WAIT, why="no list has the host")
        if is_leaving and row.phase != Phase.ABORTING:
            return Act(do=Do.ADVANCE, target=Phase.ABORTING)
        phase, wanted = Phase(row.phase), _wanted(row)
        found = self._found(host)
        return next_onboarding_act(phase, wanted, found, now=database_now(), tried_at=row.tried_at)

    def _found(self, host: Host | None) -> Found:
        row, nova = self._row, self._nova
        phase = Phase(row.phase)
        if row.kind == LifecycleKind.OUT:
            agents = HostAgent.objects.filter(
                host_name=row.host_name, decommissioned_at__isnull=True
            )
            known_vms = 0 if host is None else Instance.objects.filter(host=host).count()
            return Found(
                service=nova.service(),
                aggregates=nova.aggregates(),
                vms=nova.vms() or known_vms,
                reservations=count_held(row.host_name),
                has_agent=agents.exists(),
                has_provider=nova.has_provider(),
            )
        if phase is Phase.ABORTING:
            return Found(test_vms=nova.test_vms())
        is_asked = phase in {Phase.INITIAL, Phase.HANDOVER}
        return Found(
            service=nova.service() if phase is Phase.INITIAL else None,
            zones=nova.zones() if is_asked else {},
            aggregates=nova.aggregates() if is_asked else (),
            test_vms=nova.test_vms() if phase is not Phase.INITIAL else (),
            traits=nova.traits() if phase is Phase.HANDOVER else None,
        )

    def _carry_out(self, act: Act) -> str:
        """Do it; return what hindered it, empty for nothing."""
        nova = self._nova
        if act.do is Do.ADVANCE:
            self._advance(Phase(act.target))
        if act.do in {Do.ADVANCE, Do.WAIT}:
            return ""
        if act.do is Do.BOOT_TEST_VM:
            return self._boot()
        asked: dict[Do, Callable[[], str]] = {
            Do.DELETE_TEST_VM: lambda: nova.delete_vm(act.target),
            Do.JOIN_AGGREGATE: lambda: nova.change_aggregate(act.target, joins=True),
            Do.LEAVE_AGGREGATE: lambda: nova.change_aggregate(act.target, joins=False),
            Do.ENABLE_SERVICE: nova.enable,
            Do.SET_TRAITS: lambda: nova.add_traits(_wanted(self._row).traits),
            Do.DELETE_SERVICE: nova.delete_service,
            Do.DELETE_PROVIDER: nova.delete_provider,
        }
        refusal = asked[act.do]()
        if not refusal:
            facts = {"target": act.target} if act.target else {}
            self._tell(f"host_{act.do.value}", facts, why=act.why)
        return refusal

    def _boot(self) -> str:
        """Note that a test VM is asked for, then ask: of two that look at once one does."""
        row, now = self._row, database_now()
        mine = HostLifecycle.objects.filter(pk=row.pk, tests=row.tests, phase=row.phase)
        if not mine.update(tests=F("tests") + 1, tried_at=now):
            return ""
        refusal = self._nova.boot_test_vm()
        if not refusal:
            self._tell(f"host_{Do.BOOT_TEST_VM.value}", {"number": row.tests + 1})
        return refusal

    def _advance(self, phase: Phase) -> None:
        row = self._row
        with transaction.atomic():
            host = lock_host(name=row.host_name)
            facts: dict[str, Any] = {"phase": phase.value}
            if phase in OVER:
                facts["closed_at"] = database_now()
            mine = HostLifecycle.objects.filter(pk=row.pk, phase=row.phase, closed_at=None)
            if not mine.update(**facts, waits_for="", trouble=""):
                return  # another process did
            before, row.phase = row.phase, phase.value
            row.closed_at = facts.get("closed_at")
            if host is not None and row.kind == LifecycleKind.IN:
                if phase is Phase.SUCCEEDED:
                    available = row.wanted["high_availability"]
                    Host.objects.filter(pk=host.pk).update(high_availability=available)
                _state_conditions(host, row)
            self._tell(
                "host_lifecycle_phase", {"kind": row.kind, "phase": row.phase}, before=before
            )

    def _keep(self, **facts: str) -> None:
        """Write how it stands, unless another process is further: then that one says it."""
        row = self._row
        with transaction.atomic():
            host = lock_host(name=row.host_name)
            mine = HostLifecycle.objects.filter(pk=row.pk, phase=row.phase, closed_at=None)
            is_written = mine.update(**facts, looked_at=database_now())
            if is_written and host is not None and row.kind == LifecycleKind.IN:
                _state_conditions(host, row)

    def _tell(
        self, action: str, facts: Mapping[str, object], *, why: str = "", before: str = ""
    ) -> None:
        with transaction.atomic():
            _record(
                action,
                self._row,
                facts,
                actor=self._actor,
                request_id=self._request_id,
                why=why,
                before=before,
            )


def _leaving() -> QuerySet[Host]:
    """Return hosts that are to go for good and that we take out."""
    return Host.objects.filter(maintenance=Maintenance.TERMINATION, is_self_described=False)


def _open_offboardings(*, actor: Actor, request_id: str) -> None:
    """Begin with hosts that are to go for good and of which nobody begun."""
    begun = HostLifecycle.objects.filter(
        Q(closed_at=None) | Q(kind=LifecycleKind.OUT, opened_at__gte=OuterRef("terminating_since")),
        host_name=OuterRef("name"),
    )
    for host in _leaving().filter(~Exists(begun)).order_by("name"):
        row = HostLifecycle(
            host_name=host.name,
            kind=LifecycleKind.OUT,
            phase=Phase.OFFBOARDING.value,
            service_host=host.service_host or host.name,
            provider_uuid=host.provider_uuid or host.openstack_id,
            reason=host.maintenance_reason or "termination",
            opened_by=actor.name,
        )
        try:
            with transaction.atomic():
                row.save(force_insert=True)
                _record("host_offboarding_begun", row, {}, actor=actor, request_id=request_id)
        except IntegrityError:
            continue  # another process was first


def _locked(name: str) -> Host:
    host = lock_host(name=name) if name.isprintable() else None
    if host is None:
        raise UnknownHost(name)
    if host.is_self_described:
        raise HostSpeaksForItself(f"{name} has an object of its own, which says that")
    return host


def _problem(host: Host, order: OnboardingOrder) -> str:
    """Return why a host is not brought in, empty if it may be."""
    chosen = settings.HEADROOM.feed
    if not chosen.cloud or not chosen.onboards_hosts:
        return "HEADROOM_FEED__ONBOARDS_HOSTS is not set"
    if not order.skips_tests and not (chosen.test_flavor and chosen.test_image):
        return "HEADROOM_FEED__TEST_FLAVOR and TEST_IMAGE say what is booted, or skip the tests"
    if host.maintenance:
        return f"it is in maintenance ({host.maintenance})"
    vms, held = Instance.objects.filter(host=host).count(), count_held(host.name)
    if vms or held:
        return f"it is in service: it has {vms} VMs and {held} reservations"
    return ""


def _end_way_out(row: HostLifecycle, *, actor: Actor, request_id: str) -> None:
    """End what is open of a host that is not to go any more, as the next look at it would."""
    mine = HostLifecycle.objects.filter(pk=row.pk, closed_at=None)
    if not mine.update(
        phase=Phase.ABORTED.value, closed_at=database_now(), waits_for="", trouble=""
    ):
        return  # another process did
    facts = {"kind": row.kind, "phase": Phase.ABORTED.value}
    _record(
        "host_lifecycle_phase", row, facts, actor=actor, request_id=request_id, before=row.phase
    )


def _wanted(row: HostLifecycle) -> Wanted:
    return Wanted(
        aggregates=tuple(row.wanted["aggregates"]),
        traits=tuple(row.wanted["traits"]),
        skips_tests=row.wanted["skips_tests"],
        test_aggregate=row.wanted["test_aggregate"],
    )


def _state_conditions(host: Host, row: HostLifecycle) -> None:
    """Have a locked host's conditions say that it is on its way in, aborted, or nothing of it."""
    conditions = {name: told for name, told in host.conditions.items() if name not in _OURS}
    reasons = {name: told for name, told in host.condition_reasons.items() if name not in _OURS}
    if row.phase != Phase.SUCCEEDED:
        is_on = row.phase != Phase.ABORTED
        conditions |= {"Onboarding": "True" if is_on else "False", "Ready": "False"}
        reasons |= {
            "Onboarding": {"reason": row.phase.capitalize()},
            "Ready": {"reason": "Onboarding", "message": row.phase},
        }
    if (conditions, reasons) == (host.conditions, host.condition_reasons):
        return
    host.conditions, host.condition_reasons = conditions, reasons
    host.generation += 1
    host.save(update_fields=["conditions", "condition_reasons", "generation"])


def _record(
    action: str,
    row: HostLifecycle,
    facts: Mapping[str, object],
    *,
    actor: Actor,
    request_id: str,
    why: str = "",
    before: str = "",
) -> None:
    change = Change(
        action=action,
        object_type="host",
        object_id=row.host_name,
        before={"phase": before} if before else None,
        after=dict(facts),
        reason=why or row.reason,
    )
    record_changes([change], actor=actor, request_id=request_id)
