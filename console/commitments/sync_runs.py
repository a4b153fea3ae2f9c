"""Admin of the runs of importers and of the syncer; accepting that a set shrank."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from commitments.models import SyncOutcome, SyncRun
from commitments.services.sync_runs import accept_shrink, why_not_acceptable
from console.base import (
    BaseAdmin,
    SystemOwnedAdmin,
    badge,
    column,
    request_actor,
    shown,
    time_tag,
)
from core.text import NOTHING, count_text, duration_text
from journal.middleware import request_id_of

TONES = {
    SyncOutcome.INCOMPLETE.value: "warn",
    SyncOutcome.NOT_READY.value: "warn",
    SyncOutcome.GUARDED.value: "bad",
    SyncOutcome.FAILED.value: "bad",
    SyncOutcome.ABANDONED.value: "bad",
}
PAGE = (
    "source",
    "result",
    "explanation",
    "started_at",
    "finished_at",
    "duration",
    "details",
    "acceptance",
)


class AcceptShrinkForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """Asks before the guard is told that it was wrong."""

    is_accepted = forms.BooleanField(
        required=True,
        label="What is missing is really gone",
        help_text="Later runs are compared with this one. What stays missing then ends, and gives "
        "its capacity back, after the usual number of runs and hours.",
    )

    class Meta:
        model = SyncRun
        fields: list[str] = []

    def clean(self) -> dict[str, Any]:
        """Refuse what the service would refuse."""
        problem = why_not_acceptable(self.instance)
        if problem:
            raise forms.ValidationError(problem)
        return super().clean() or {}


@admin.register(SyncRun)
class SyncRunAdmin(SystemOwnedAdmin[SyncRun]):
    """Runs of importers and of the syncer: how they ended, and what they counted."""

    owner_note = (
        "Every run writes its own row. A run that the guard stopped asks on its page whether what "
        "is missing is really gone."
    )
    form = AcceptShrinkForm
    list_display = (
        "__str__",
        "source",
        "result",
        column("started_at", "started"),
        "duration",
        "counted",
    )
    list_filter = ("source", "outcome", "error_code")
    search_fields = ("source", "message", "error_code")
    page_columns = PAGE

    def has_change_permission(self, request: HttpRequest, obj: SyncRun | None = None) -> bool:
        """Let operators accept the shrink that stopped a run; nothing else can be changed."""
        may_change = BaseAdmin.has_change_permission(self, request, obj)
        return may_change and obj is not None and not why_not_acceptable(obj)

    def get_fields(self, request: HttpRequest, obj: SyncRun | None = None) -> Any:
        """Show the run, and the question when there is one."""
        if self.has_change_permission(request, obj):
            return (*PAGE, "is_accepted")
        return super().get_fields(request, obj)

    def get_readonly_fields(self, request: HttpRequest, obj: SyncRun | None = None) -> Any:
        """Return what is shown and not edited."""
        return PAGE if self.has_change_permission(request, obj) else super().get_readonly_fields(
            request, obj
        )  # fmt: skip

    def save_model(self, request: HttpRequest, obj: SyncRun, form: Any, change: Any) -> None:
        """Accept through the service, which audits."""
        accept_shrink(obj.pk, actor=request_actor(request), request_id=request_id_of(request))

    @admin.display(description="outcome", ordering="outcome")
    def result(self, row: SyncRun) -> SafeString:
        """Show how the run ended."""
        if row.finished_at is None:
            return badge("warn", "running, or it died")
        text = row.error_code or row.outcome or "finished"
        tone = TONES.get(row.outcome, "bad" if row.error_code else "ok")
        return badge("ok" if row.shrink_accepted_by else tone, text, row.message)

    explanation = shown(
        "why", lambda row: format_html("<pre>{}</pre>", row.message) if row.message else NOTHING
    )

    @admin.display(description="took")
    def duration(self, row: SyncRun) -> str:
        """Show how long the run took."""
        if row.finished_at is None:
            return NOTHING
        return duration_text(row.finished_at - row.started_at)

    counted = shown(
        "counts",
        lambda row: (
            ", ".join(f"{name} {count}" for name, count in _counts(row) if count) or NOTHING
        ),
    )

    @admin.display(description="counts")
    def details(self, row: SyncRun) -> SafeString | str:
        """Show everything the run counted, one a line."""
        lines = "\n".join(f"{count_text(count):>12}  {name}" for name, count in _counts(row))
        return format_html("<pre>{}</pre>", lines) if lines else NOTHING

    @admin.display(description="shrink accepted")
    def acceptance(self, row: SyncRun) -> SafeString | str:
        """Show who accepted that the set shrank, and when."""
        if not row.shrink_accepted_by:
            return NOTHING
        moment = time_tag(row.shrink_accepted_at)
        return format_html("by {} {}", row.shrink_accepted_by, moment)


def _counts(row: SyncRun) -> list[tuple[str, int]]:
    """Return the plain counts of a run with their names in words."""
    return [
        (name.replace("_", " "), count)
        for name, count in row.counts.items()
        if isinstance(count, int)
    ]
