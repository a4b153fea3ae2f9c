"""The form of a sell page: what would be free, and would an amount fit, on an edited region."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from django import forms

from capacity.figures.probe_pipelines import current_probes
from capacity.figures.zone_capacity import PROBE_PROJECT_ID, group_room
from capacity.groups.flavor_groups import FlavorGroupDef
from commitments.domain.changeset import (
    ChangeRequest,
    CommitmentChange,
    ProjectChanges,
    ResourceChangeset,
)
from commitments.domain.names import resource_name_ram
from commitments.domain.statuses import CommitmentStatus
from commitments.domain.what_if import WhatIfAnswer
from commitments.services.what_if import AddedHosts, WhatIfQuestion, prepare_what_if
from console.base import PageData
from console.links import find_url
from console.sell.room import sellable_bytes
from core.text import gib_text, plural, time_text
from journal.heavy import computed_apart, heavy_question
from scheduling.resources import GIB

MOST_GIB: Final = 1 << 30
MOST_HOSTS: Final = 1_000
TERM: Final = timedelta(days=365)
HOSTS_NAMED: Final = 8
LAST_YEAR: Final = 2200


class WhatIfForm(forms.Form):
    """What is asked for and how the region differs; an address with it can be shared."""

    amount_gib = forms.IntegerField(
        label="Would this fit? (GiB)", min_value=1, max_value=MOST_GIB, required=False
    )
    at = forms.DateField(
        label="On this day (UTC)",
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}),
    )
    others_gib = forms.IntegerField(
        label="After others take (GiB)", min_value=1, max_value=MOST_GIB, required=False
    )
    hosts = forms.IntegerField(
        label="With more hosts", min_value=1, max_value=MOST_HOSTS, required=False
    )
    like = forms.CharField(label="like this host", max_length=255, required=False)

    def clean_at(self) -> date | None:
        """Refuse days that are further away than anything planned."""
        day: date | None = self.cleaned_data["at"]
        if day is not None and day.year > LAST_YEAR:
            raise forms.ValidationError(f"At the latest in {LAST_YEAR}")
        return day

    def clean(self) -> dict[str, Any]:
        """Refuse new hosts that are like none."""
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if cleaned.get("hosts") and not cleaned.get("like"):
            self.add_error("like", "Name the host that the new ones are like")
        return cleaned


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a form asks, of a group in a zone; amounts in declared units."""

    group: FlavorGroupDef
    zone: str
    unit_bytes: int
    at: datetime | None
    units: int
    other_units: int
    hosts: int
    like: str

    @classmethod
    def of(
        cls, form: WhatIfForm, group: FlavorGroupDef, zone: str, *, unit_bytes: int, now: datetime
    ) -> Asked:
        """Return what a valid form asks; amounts are rounded up to whole units.

        A day that has begun is now.
        """
        said = form.cleaned_data
        day = said["at"]
        at = datetime(day.year, day.month, day.day, tzinfo=now.tzinfo) if day else None
        return cls(
            group=group,
            zone=zone,
            unit_bytes=unit_bytes,
            at=None if at is not None and at.date() == now.date() else at,
            units=-(-(said["amount_gib"] or 0) * GIB // unit_bytes),
            other_units=-(-(said["others_gib"] or 0) * GIB // unit_bytes),
            hosts=said["hosts"] or 0,
            like=said["like"].strip(),
        )


def ask_what_if(asked: Asked, *, now: datetime) -> PageData:
    """Return what the planner that decides change requests says, for a page.

    Raises:
        InvalidInput: the day has passed, a host is unknown, or the group takes no commitments.
        NotReady: flavor groups were not extracted yet.
        TooManyComputations: others ask, too.
        ComputationTooLong: it took too long.
    """
    end = (asked.at or now) + TERM
    question = WhatIfQuestion(
        batch=_batch(asked, asked.units, end),
        at=asked.at,
        hosts_added=(AddedHosts(like=asked.like, count=asked.hosts),) if asked.hosts else (),
        added=_batch(asked, asked.other_units, end) if asked.other_units else None,
    )
    with heavy_question():
        answer = prepare_what_if(question, now=now)
        probes = current_probes()

        def told() -> PageData:
            found = answer()
            free = [
                sellable_bytes(group_room(snapshot.hosts, asked.zone, asked.group, probes))
                for snapshot in (found.before, found.after)
            ]
            return _page(asked, found, free, now)

        return computed_apart(told)


def _batch(asked: Asked, units: int, end: datetime) -> ChangeRequest:
    if not units:
        return ChangeRequest(zone=asked.zone)
    change = CommitmentChange(
        uuid=str(uuid4()),
        old_status=None,
        new_status=CommitmentStatus.CONFIRMED,
        amount_units=units,
        expires_at=end,
    )
    changes = ResourceChangeset(total_confirmed_after=units, commitments=(change,))
    resource = resource_name_ram(asked.group.name)
    return ChangeRequest(
        zone=asked.zone,
        by_project={PROBE_PROJECT_ID: ProjectChanges(by_resource={resource: changes})},
    )


def _page(asked: Asked, found: WhatIfAnswer, free: list[int], now: datetime) -> PageData:
    before, after = (amount // asked.unit_bytes * asked.unit_bytes for amount in free)
    when = f"On {asked.at:%Y-%m-%d}" if asked.at else "Now"
    wanted = gib_text(asked.units * asked.unit_bytes)
    others = _others(asked, found)
    facts = [(f"{when}, sellable", gib_text(before))]
    if not asked.units:
        return PageData(
            tone="ok" if before else "bad",
            icon="check_circle" if before else "block",
            title=f"{gib_text(before)} would be sellable",
            sentence="With what is known to end, to start and to come until then.",
            others=others,
            facts=(),
            hosts=(),
            hidden=0,
        )
    decision = found.plan.decisions[0]
    if found.plan.rejections:
        advice = found.advice
        uuid = decision.target.commitment_uuid
        smaller = advice.smaller_units.get(uuid)
        if smaller:
            facts.append(("fits at once", gib_text(smaller * asked.unit_bytes)))
        fits = time_text(advice.fit.at, now) if advice.fit else "at no known moment"
        facts.append(("all of it fits from", fits))
        facts.append(("fits now in", ", ".join(advice.zones) or "no other zone"))
        return PageData(
            tone="bad",
            icon="block",
            title=f"{wanted} would be refused",
            sentence=advice.causes.get(uuid) or decision.message,
            others=others,
            facts=facts,
            hosts=(),
            hidden=0,
        )
    facts.append(("left after it", gib_text(after)))
    hosts = Counter(
        placement.decision.host_name
        for placement in decision.placements
        if placement.decision is not None and placement.decision.host_name is not None
    )
    slots = plural(sum(hosts.values()), "slot")
    return PageData(
        tone="ok",
        icon="check_circle",
        title=f"{wanted} would be accepted",
        sentence=f"In {slots} on {plural(len(hosts), 'host')}.",
        others=others,
        facts=facts,
        hosts=[
            (name, find_url("host", name) if name in hosts else "", plural(count, "slot"))
            for name, count in hosts.most_common(HOSTS_NAMED)
        ],
        hidden=max(0, len(hosts) - HOSTS_NAMED),
    )


def _others(asked: Asked, found: WhatIfAnswer) -> str:
    if not asked.other_units:
        return ""
    amount = gib_text(asked.other_units * asked.unit_bytes)
    if found.added.rejections:
        return f"The {amount} of others would be refused, and take nothing."
    return f"The {amount} of others would be accepted before."
