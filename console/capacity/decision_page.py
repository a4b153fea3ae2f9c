"""What the pages of decisions show: one decision, and why VMs found no host lately."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_uppercase

from django.utils.safestring import SafeString

from capacity.models import SchedulingDecision
from capacity.nova.decision_masks import DamagedMasksError
from capacity.nova.refusals import refusals_by_group
from capacity.nova.stored_decisions import (
    DecodedDecision,
    Fate,
    HostFate,
    decode_decision,
    history_of_vm,
)
from console.base import TONE_ICONS, PageData, badge, time_tag
from console.charts import (
    WEIGHER_TONES,
    Part,
    funnel_bar,
    score_bar,
    score_reach,
)
from console.links import find_url, row_url
from core.text import NOTHING, count_text, memory_text, plural
from hosts.models import Host
from scheduling.intents import Intent

NAMES_SHOWN = 200
START_WEIGHT = "weight given by the caller"


def decision_page(row: SchedulingDecision, *, asked_host: str = "") -> PageData:
    """Return what the page of a decision shows.

    Args:
        row: The decision.
        asked_host: A host that somebody asks "why not?" about; empty for none.
    """
    decoded, problem = _decoded(row)
    funnel = _funnel(row, decoded)
    key = _key(row)
    tone = "ok" if row.is_successful else "bad"
    return PageData(
        tone=tone,
        icon=TONE_ICONS[tone],
        title=outcome_title(row),
        sentence=_sentence(row, funnel),
        facts=_facts(row),
        start_bar=funnel_bar(
            before=row.hosts_in,
            remaining=row.hosts_in,
            started=row.hosts_in,
            title=f"started with {plural(row.hosts_in, 'host')}",
        ),
        started=plural(row.hosts_in, "host"),
        funnel=funnel,
        ranking=_ranking(row, key),
        key=key,
        ranking_note=_ranking_note(row),
        verdict=_verdict(row, decoded, asked_host) if asked_host else None,
        asked_host=asked_host,
        explanation=row.message,
        history=_history(row),
        problem=problem,
    )


def outcome_title(row: SchedulingDecision) -> str:
    """Return the outcome in a few words."""
    if row.is_successful:
        return f"{row.target_host_name} was chosen"
    return "No host was chosen"


def outcome_badge(row: SchedulingDecision) -> SafeString:
    """Show the outcome as icon and word."""
    return badge("ok", "placed") if row.is_successful else badge("bad", "no host")


def fate_sentence(fate: HostFate, target: str) -> str:
    """Say what became of a host in a run.

    Args:
        fate: What became of it.
        target: The chosen host; empty if none.
    """
    name = fate.host_name
    if fate.fate is Fate.CHOSEN:
        return f"{name} was chosen."
    if fate.fate is Fate.REMOVED:
        return f"{name} was removed by {step_title(fate.step)} ({fate.step})."
    if fate.fate is Fate.NOT_CONSIDERED:
        return f"{name} was known but not among the candidates of this request."
    if fate.fate is Fate.UNKNOWN:
        return f"{name} was not known when this was decided."
    passed = f"{name} passed every filter"
    if fate.position is not None:
        return f"{passed} and came {_ordinal(fate.position)} with a score of {fate.score:.3f}."
    ahead = f" behind {target}" if target else ""
    return f"{passed}, but ranked{ahead} below the hosts whose scores are kept."


def step_title(step: str) -> str:
    """Return the name of a step for people."""
    return step.removeprefix("filter_").removeprefix("kvm_").replace("_", " ")


def _decoded(row: SchedulingDecision) -> tuple[DecodedDecision | None, str]:
    try:
        decoded = decode_decision(row)
    except DamagedMasksError as error:
        return None, f"The stored removals cannot be read: {error}."
    if decoded is None:
        return None, "Which hosts were removed was not recorded."
    return decoded, ""


def _sentence(row: SchedulingDecision, funnel: Sequence[PageData]) -> str:
    if row.is_successful:
        passed = f"{row.hosts_out:,} of {plural(row.hosts_in, 'host')} passed every filter"
        second = row.top_hosts[1] if len(row.top_hosts) > 1 else None
        if second is None:
            return f"{passed}."
        return f"{passed}; the next best was {second['host']}."
    last = next((step for step in funnel if step.is_last_straw), None)
    if last is not None:
        return f"Of {plural(row.hosts_in, 'host')}, the last were removed by {last.title}."
    if row.hosts_out:
        return f"{plural(row.hosts_out, 'host')} passed every filter, but none could be held."
    return "There was no host to choose from."


def _intent_text(row: SchedulingDecision) -> str:
    if not row.intent_reason:
        return row.intent or NOTHING
    return f"{row.intent}, not told, but {row.intent_reason}"


def _facts(row: SchedulingDecision) -> tuple[PageData, ...]:
    size = f"{memory_text(row.memory_bytes)}, {count_text(row.vcpus, 'vCPUs')}"
    version = f" v{row.pipeline_version}" if row.pipeline_version else ""
    return (
        _linked("VM", "vm", row.vm_uuid, getattr(row, "vm_name", None) or ""),
        _linked("Project", "project", row.project_id, getattr(row, "project_name", None) or ""),
        PageData(label="Asked", text=f"{row.flavor_name} ({size})" if row.flavor_name else size),
        _linked("Flavor group", "flavor_group", row.flavor_group_name),
        PageData(label="Intent", text=_intent_text(row)),
        PageData(label="Zone", text=row.zone or "any"),
        PageData(label="Pipeline", text=f"{row.pipeline_name}{version}"),
        PageData(label="When", text=time_tag(row.created_at)),
        PageData(label="Took", text=_duration(row.duration_microseconds)),
        PageData(label="Commitment slot", text=row.outcome_class.replace("_", " ") or NOTHING),
        PageData(label="Request", text=row.request_id or NOTHING),
    )


def _linked(label: str, object_type: str, public_id: str, text: str = "") -> PageData:
    if not public_id:
        return PageData(label=label, text=NOTHING)
    return PageData(label=label, text=text or public_id, url=find_url(object_type, public_id))


def _duration(microseconds: int) -> str:
    whole, part = divmod(microseconds // 10, 100)
    return f"{whole:,}.{part:02} ms"


def _funnel(row: SchedulingDecision, decoded: DecodedDecision | None) -> tuple[PageData, ...]:
    steps = []
    before = row.hosts_in
    for entry in row.removals:
        step, removed, remaining = entry["step"], entry["removed"], entry["remaining"]
        names = decoded.hosts_removed_by(step) if decoded is not None and removed else ()
        summary = (
            f"{plural(removed, 'host')} removed, {remaining:,} left" if removed else "removed none"
        )
        title = step_title(step)
        steps.append(
            PageData(
                title=title,
                step=step,
                bar=funnel_bar(
                    before=before,
                    remaining=remaining,
                    started=row.hosts_in,
                    title=f"{title}: {summary}",
                ),
                summary=summary,
                note=entry.get("note", ""),
                hosts=names[:NAMES_SHOWN],
                hidden=max(0, len(names) - NAMES_SHOWN),
                has_removed=bool(removed),
                is_last_straw=bool(removed) and not remaining,
            )
        )
        before = remaining
    return tuple(steps)


def _key(row: SchedulingDecision) -> tuple[Part, ...]:
    names: dict[str, None] = {}
    for entry in row.top_hosts:
        names.update(dict.fromkeys(_shares(entry)))
    return tuple(
        Part(
            letter=ascii_uppercase[number % len(ascii_uppercase)],
            name=name,
            share=0.0,
            tone=number % WEIGHER_TONES,
        )
        for number, name in enumerate(names)
    )


def _shares(entry: dict[str, object]) -> dict[str, float]:
    contributions = entry.get("contributions")
    shares = dict(contributions) if isinstance(contributions, dict) else {}
    start = entry.get("start")
    return {START_WEIGHT: start, **shares} if isinstance(start, float) and start else shares


def _ranking(row: SchedulingDecision, key: Sequence[Part]) -> tuple[PageData, ...]:
    shares = [_shares(entry) for entry in row.top_hosts]
    reach = score_reach(shares)
    names = [entry["host"] for entry in row.top_hosts]
    known = {host.name: row_url(host) for host in Host.objects.filter(name__in=names)}
    ranked = []
    for place, (entry, parts_of) in enumerate(zip(row.top_hosts, shares, strict=True), start=1):
        parts = tuple(
            Part(letter=one.letter, name=one.name, share=parts_of.get(one.name, 0.0), tone=one.tone)
            for one in key
        )
        score = f"{entry['score']:.3f}"
        ranked.append(
            PageData(
                place=place,
                name=entry["host"],
                url=known.get(entry["host"], ""),
                score=score,
                bar=score_bar(parts, reach=reach, title=f"{entry['host']} scores {score}"),
                parts=parts,
                is_target=entry["host"] == row.target_host_name,
            )
        )
    return tuple(ranked)


def _ranking_note(row: SchedulingDecision) -> str:
    shown = len(row.top_hosts)
    note = "every host that passed"
    if shown < row.hosts_out:
        note = f"best {shown} of {row.hosts_out:,} that passed"
    scores = [float(entry["score"]) for entry in row.top_hosts]
    if scores and row.intent == Intent.EVACUATE and scores[0] < max(scores):
        return f"{note}; the first is where its evacuation was planned, whatever it scores"
    return note


def _verdict(
    row: SchedulingDecision, decoded: DecodedDecision | None, host_name: str
) -> PageData | None:
    if decoded is None:
        return None
    fate = decoded.fate_of(host_name)
    tone = {Fate.CHOSEN: "ok", Fate.PASSED: "warn", Fate.REMOVED: "bad"}.get(fate.fate, "idle")
    return PageData(
        host_name=host_name,
        tone=tone,
        icon=TONE_ICONS[tone],
        sentence=fate_sentence(fate, row.target_host_name),
    )


def _history(row: SchedulingDecision) -> tuple[PageData, ...]:
    if not row.vm_uuid:
        return ()
    return tuple(
        PageData(
            url=row_url(run),
            when=time_tag(run.created_at),
            pipeline=run.pipeline_name,
            intent=run.intent or NOTHING,
            target=run.target_host_name or NOTHING,
            hosts=f"{run.hosts_in:,} → {run.hosts_out:,}",
            outcome=outcome_badge(run),
            is_this=run.pk == row.pk,
        )
        for run in history_of_vm(row.vm_uuid)
    )


def _ordinal(place: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{'th' if place % 100 in {11, 12, 13} else ending}"


NO_GROUP = "no group"
OUTCOME_WORDS = {
    "": "not tracked",
    "no_cr": "no active commitment",
    "cr_exhausted": "commitment used up",
    "slot_blocked": "slot ruled out by other filters",
    "slot_exhausted": "no slot could take it",
    "error": "flavor groups not known",
}


def refusal_lines() -> tuple[PageData, ...]:
    """Return the flavor groups with refused VMs, most refusals first."""
    return tuple(
        PageData(
            group=one.group or NO_GROUP,
            refused=count_text(one.refused),
            classes=_counted((OUTCOME_WORDS.get(name, name), count) for name, count in one.classes),
            filters=_counted((step_title(step) or NOTHING, count) for step, count in one.filters),
        )
        for one in refusals_by_group()
    )


def _counted(pairs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{words} ({count_text(count)})" for words, count in pairs)
