"""Admin of change requests that were refused."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from commitments.refusal_models import RefusedChange
from console.base import SystemOwnedAdmin, badge, column, shown
from core.text import NOTHING

SHOWN = 3


@admin.register(RefusedChange)
class RefusedChangeAdmin(SystemOwnedAdmin[RefusedChange]):
    """Change requests that were answered no: who asked for what, and why not."""

    owner_note = (
        "Every change request that was refused; dry runs are not kept. They are forgotten after "
        "HEADROOM_LIQUID__REFUSAL_RETENTION_DAYS."
    )
    list_display = (
        column("created_at", "refused"),
        "zone",
        "verdict",
        "wanted",
        "actor",
        "request_id",
    )
    list_display_links = ("zone",)
    list_filter = ("zone", "is_timeout")
    search_fields = ("request_id", "actor", "reason", "asked")
    page_columns = (
        "zone",
        "verdict",
        column("created_at", "refused"),
        "actor",
        "request_id",
        "answer",
        column("retry_at", "told to try again"),
        "commitments_asked",
        "commitments_refused",
    )

    @admin.display(description="verdict", ordering="is_timeout")
    def verdict(self, row: RefusedChange) -> SafeString:
        """Show whether it did not fit or took too long."""
        if row.is_timeout:
            return badge("warn", "ran out of time", row.reason)
        return badge("bad", "refused", row.reason)

    @admin.display(description="asked for")
    def wanted(self, row: RefusedChange) -> str:
        """Show the first changes in words."""
        told = [_words(item) for item in row.asked[:SHOWN]]
        more = len(row.asked) - SHOWN
        return "; ".join([*told, *([f"{more} more"] if more > 0 else [])]) or NOTHING

    answer = shown("answer", lambda row: format_html("<pre>{}</pre>", row.reason))
    commitments_asked = shown("asked for", lambda row: _lines([_words(item) for item in row.asked]))
    commitments_refused = shown(
        "refused",
        lambda row: _lines(
            [
                " ".join(filter(None, (item["commitment"], item["message"], item["advice"])))
                for item in row.refused
            ]
        ),
    )


def _words(item: dict[str, Any]) -> str:
    states = f"{item['old_status'] or 'new'} to {item['new_status'] or 'gone'}"
    return (
        f"{item['amount_units']} of {item['resource']} for {item['project']} "
        f"({item['commitment']}, {states})"
    )


def _lines(lines: list[str]) -> SafeString | str:
    if not lines:
        return NOTHING
    return format_html(
        "<ul>{}</ul>", format_html_join("", "<li>{}</li>", ((line,) for line in lines))
    )
