"""What the page of a zone's broken rules and stale memberships shows (spec failover, 14.4)."""

from __future__ import annotations

from collections.abc import Mapping

from console.base import PageData, time_tag
from console.links import find_url, list_url
from core.text import time_text
from failover.domain.plan import RemovalReason
from failover.selectors.troubles import TroubledMember, TroubledSlot, ZoneTroubles
from hosts.models import Instance
from journal.clock import database_now

WHY = {
    RemovalReason.GONE: "the VM is in no list any more",
    RemovalReason.MOVED: "the VM moved",
    RemovalReason.HOST_GONE: "the VM's host or the reservation's has left the zone",
    RemovalReason.RULES: "it breaks a rule, and costs least to remove",
    RemovalReason.TOO_LARGE: "the VM outgrew the reservation",
    RemovalReason.SURPLUS: "the VM has more reservations than it needs",
}
NOT_LISTED = "only its host reports the VM, the list does not have it"
SLOT_WORDS = {
    "host_gone": ("its host has left the zone", "its users leave, then it is deleted"),
    "host_not_ready": (
        "its host takes no VMs now",
        "validation takes its users out, and the loop finds them others",
    ),
    "consuming": ("an evacuation is planned into it", "stays until the evacuation has ended"),
    "not_ready": ("it is marked as not ready", "keeps its room and covers nobody"),
    "empty": ("nobody is in it", "the next run deletes it"),
}
KEPT = "stays: what a host still runs is not given up"


def trouble_page(troubles: ZoneTroubles) -> PageData:
    """Return the page of what is wrong in a zone."""
    names = _names(troubles)
    sections = (
        ("VMs that break a rule", tuple(_rule_lines(troubles, names))),
        (
            "VMs in reservations that they leave, or stay in by the safeguard",
            tuple(_member(one, troubles, names) for one in troubles.members),
        ),
        ("Reservations that cover nobody", tuple(_slot(one) for one in troubles.slots)),
    )
    count = sum(len(lines) for _, lines in sections) + troubles.hidden
    is_bad = bool(troubles.broken) or troubles.brake is not None
    tone = "bad" if is_bad else "warn" if count else "ok"
    return PageData(
        tone=tone,
        icon={"bad": "error", "warn": "warning", "ok": "check_circle"}[tone],
        title=_title(troubles, count),
        sentence=_sentence(troubles, count),
        sections=tuple((title, lines) for title, lines in sections if lines),
        hidden=troubles.hidden,
        zones_url=list_url("failover.failoverzone", zone__exact=troubles.zone),
    )


def _title(troubles: ZoneTroubles, count: int) -> str:
    if troubles.breaking_vms:
        return f"{troubles.breaking_vms:,} VMs break a rule"
    return f"All rules hold; {count:,} things are out of date" if count else "Nothing is wrong"


def _sentence(troubles: ZoneTroubles, count: int) -> str:
    if troubles.brake is not None and not troubles.is_confirmed:
        return (
            f"The brake is on ({troubles.brake.message}): nothing is removed until it is confirmed."
        )
    if not count:
        return f"All rules hold in {troubles.zone}, and every user is where it was recorded."
    when, now = troubles.next_run_at, database_now()
    words = "due" if when is None or when <= now else time_text(when, now)
    return f"The next run of the loop is {words}."


def _will(troubles: ZoneTroubles) -> str:
    if troubles.brake is not None and not troubles.is_confirmed:
        return f"held by the brake: {troubles.brake.code}"
    return "leaves with the next run"


def _names(troubles: ZoneTroubles) -> dict[str, str]:
    """Return the names of the VMs that are told about; one that is gone has none."""
    uuids = {one.vm_uuid for one in troubles.broken} | {one.vm_uuid for one in troubles.members}
    rows = Instance.objects.filter(openstack_id__in=uuids).exclude(name="")
    return dict(rows.values_list("openstack_id", "name"))


def _rule_lines(troubles: ZoneTroubles, names: Mapping[str, str]) -> list[PageData]:
    leaving = {(one.vm_uuid, one.reservation) for one in troubles.members if one.reason is not None}
    return [
        PageData(
            what=names.get(one.vm_uuid, one.vm_uuid),
            url=find_url("vm", one.vm_uuid),
            where=f"{one.host}: {', '.join(one.reservations)}",
            why=f"{one.rule}: {one.words}",
            since="",
            will=(
                _will(troubles)
                if any((one.vm_uuid, name) in leaving for name in one.reservations)
                else "stays: another VM leaves"
            ),
        )
        for one in troubles.broken
    ]


def _member(one: TroubledMember, troubles: ZoneTroubles, names: Mapping[str, str]) -> PageData:
    why = NOT_LISTED if one.reason is None else WHY[one.reason]
    if one.reason is RemovalReason.MOVED:
        why = f"{why} from {one.recorded_host or 'another zone'} to {one.vm_host or 'another zone'}"
    return PageData(
        what=names.get(one.vm_uuid, one.vm_uuid),
        url=find_url("vm", one.vm_uuid),
        where=f"{one.reservation} on {one.host or 'no host'}",
        why=why,
        since=time_tag(one.right_until),
        will=KEPT if one.reason is None else _will(troubles),
    )


def _slot(one: TroubledSlot) -> PageData:
    why, will = SLOT_WORDS[one.reason]
    return PageData(
        what=one.name,
        url=list_url("failover.failoverreservation", q=one.name),
        where=f"{one.host or 'no host'}, {one.users:,} users",
        why=why,
        since=time_tag(one.right_until),
        will=will,
    )
