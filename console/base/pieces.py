"""What pages are made of: states as badges, blocks of text, times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from types import SimpleNamespace

from django.utils.html import format_html
from django.utils.safestring import SafeString

from core.text import NOTHING, count_text, moment_text, relative_text
from journal.clock import database_now

TONE_ICONS = {
    "ok": "check_circle",
    "warn": "schedule",
    "bad": "error",
    "idle": "radio_button_unchecked",
}


class PageData(SimpleNamespace):
    """What a template shows, by name."""


def badge(tone: str, text: str, hint: str = "") -> SafeString:
    """Show a state as icon and word, never by colour alone.

    Args:
        tone: ``ok``, ``warn``, ``bad`` or ``idle``.
        text: The word.
        hint: Longer text on hover.
    """
    return format_html(
        '<span class="hr-badge hr-{}" title="{}"><span class="material-symbols-outlined"'
        ' aria-hidden="true">{}</span> {}</span>',
        tone,
        hint,
        TONE_ICONS[tone],
        text,
    )


def verdict(tone: str, title: str, sentence: SafeString | str = "") -> PageData:
    """Return what stands on top of a page and says the state: ``admin/parts/verdict.html``."""
    return PageData(tone=tone, icon=TONE_ICONS[tone], title=title, sentence=sentence)


def wrapped(text: SafeString | str) -> SafeString | str:
    """Show a long text in a cell of a list, on several lines; a dash for nothing."""
    return format_html('<span class="hr-wrap">{}</span>', text) if text else NOTHING


def text_block(text: str) -> SafeString | str:
    """Show text of several lines as it is, long ones broken; a dash for nothing."""
    return format_html('<pre class="hr-json" tabindex="0">{}</pre>', text) if text else NOTHING


def plain_counts(counts: Mapping[str, object]) -> list[tuple[str, int]]:
    """Return what a run counted, with names in words; what is no number is left out."""
    return [
        (name.replace("_", " "), count) for name, count in counts.items() if isinstance(count, int)
    ]


def counts_block(counts: Mapping[str, object]) -> SafeString | str:
    """Show what a run counted, one a line; a dash for nothing."""
    return text_block(
        "\n".join(f"{count_text(count):>12}  {name}" for name, count in plain_counts(counts))
    )


def json_block(content: object) -> SafeString | str:
    """Show structured content readably; a dash for nothing."""
    if content in (None, {}, [], ""):
        return NOTHING
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False, default=str)
    return text_block(text)


def time_tag(moment: datetime | None) -> SafeString | str:
    """Show a moment in UTC with how long ago or ahead it is; a dash for None."""
    if moment is None:
        return NOTHING
    return format_html(
        '<time datetime="{}" class="hr-time">{} <span class="hr-ago">({})</span></time>',
        moment.isoformat(),
        moment_text(moment),
        relative_text(moment, database_now()),
    )
