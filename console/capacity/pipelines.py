"""Admin of scheduling pipelines: edited as text, planned before they are saved (scheduling, 4)."""

from __future__ import annotations

from typing import Any, cast

import yaml
from django import forms
from django.contrib import admin, messages
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from capacity.models import Pipeline, PipelineVersion
from capacity.nova.pipeline_document import document_from_spec, spec_from_document
from capacity.nova.pipelines import (
    PipelinePlan,
    load_row,
    plan_pipeline,
    remove_pipeline,
    save_pipeline,
    spec_of,
    stored_pipeline_warnings,
)
from console.base import BaseAdmin, ReadOnlyInline, badge, column, request_actor, shown, time_tag
from console.links import text_link
from journal.errors import HeadroomError
from journal.middleware import request_id_of
from scheduling.pipelines import InvalidPipelineError

ROWS = 30
RESTORE = "restore"
NEW_DOCUMENT = {
    "name": "",
    "scheduling_domain": "nova",
    "type": "filter-weigher",
    "description": "",
    "ignore_preselection": True,
    "create_history": True,
    "filters": [{"name": "filter_status_conditions"}, {"name": "filter_has_enough_capacity"}],
    "weighers": [],
    "detectors": [],
}


class PipelineForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """The definition as YAML; a first save shows the plan, a second with the tick applies it."""

    definition = forms.CharField(
        widget=forms.Textarea(attrs={"rows": ROWS, "spellcheck": "false", "class": "hr-code"}),
        help_text="YAML as export_pipelines writes it.",
    )
    reason = forms.CharField(required=False, help_text="Why, for the audit trail.")
    is_confirmed = forms.BooleanField(
        required=False,
        label="Apply the plan",
        help_text="Save once without it to see what would change.",
    )
    read_version = forms.IntegerField(widget=forms.HiddenInput, required=False)
    restored: PipelineVersion | None = None

    class Meta:
        model = Pipeline
        fields: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.plan: PipelinePlan | None = None
        document = NEW_DOCUMENT
        if self.instance.pk:
            document = document_from_spec(spec_of(self.instance))
        if "definition" in self.fields:
            if self.restored is not None:
                document = self.restored.definition
                self.fields["reason"].initial = f"restore version {self.restored.version}"
            self.fields["definition"].initial = as_yaml(document)
            self.fields["read_version"].initial = self.instance.version if self.instance.pk else 0

    def clean(self) -> dict[str, Any]:
        """Refuse what cannot be saved; show the plan until it is confirmed."""
        cleaned = super().clean() or {}
        if "definition" not in cleaned:
            return cleaned
        plan = self._planned(cleaned["definition"])
        if plan is None:
            return cleaned
        stored = plan.version if plan.verb == "keep" else plan.version - 1
        if cleaned.get("read_version") != stored:
            self.add_error(None, f"It was changed meanwhile and is at version {stored}: reload.")
        elif plan.verb != "keep" and not cleaned.get("is_confirmed"):
            self.add_error(None, plan_lines(plan))
        self.plan = plan
        return cleaned

    def _planned(self, text: str) -> PipelinePlan | None:
        try:
            spec = spec_from_document(yaml.safe_load(text))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.add_error("definition", str(error))
            return None
        if self.instance.pk and spec.name != self.instance.name:
            self.add_error("definition", f"name: must stay {self.instance.name}")
            return None
        if connection.in_atomic_block:  # the admin's form view opens a transaction
            Pipeline.objects.select_for_update(no_key=True).filter(name=spec.name).first()
        plan = plan_pipeline(spec)
        if plan.problems:
            self.add_error("definition", list(plan.problems))
            return None
        return plan


def version_to_restore(request: HttpRequest, row: Pipeline) -> PipelineVersion | None:
    """Return the version that the address names, None without one."""
    wanted = request.GET.get(RESTORE, "")
    if not (wanted.isdecimal() and len(wanted) < 10):  # noqa: PLR2004 - fits the column
        return None
    return row.versions.filter(version=int(wanted)).first()


def plan_lines(plan: PipelinePlan) -> list[str]:
    """Return what saving would do, for people."""
    return [
        f"Not saved yet. This would {plan.verb} {plan.spec.name} as version {plan.version}.",
        "Tick “Apply the plan” and save.",
        *plan.changes,
        *(f"Warning: {text}" for text in plan.warnings),
    ]


def as_yaml(document: dict[str, Any]) -> str:
    """Return a definition as the form shows it."""
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100))


class PipelineVersionInline(ReadOnlyInline[PipelineVersion]):
    """What the pipeline was before."""

    model = PipelineVersion
    fields = ("version", "actor", "saved", "content", "restore")
    readonly_fields = fields
    verbose_name_plural = "versions"

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Offer to restore a version to those who may change the pipeline."""
        if request.user.has_perm("capacity.change_pipeline"):
            return self.fields
        return tuple(name for name in self.fields if name != "restore")

    saved = shown("saved", lambda row: time_tag(row.created_at))
    content = shown(
        "definition",
        lambda row: format_html(
            "<details><summary>{} filters, {} weighers</summary><pre>{}</pre></details>",
            len(row.definition.get("filters", ())),
            len(row.definition.get("weighers", ())),
            as_yaml(row.definition),
        ),
    )

    @admin.display(description="restore")
    def restore(self, row: PipelineVersion) -> SafeString | str:
        """Lead to the form with this version's definition in it."""
        if row.version == row.pipeline.version:
            return "current"
        url = reverse("admin:capacity_pipeline_change", args=[row.pipeline_id])
        return text_link(f"{url}?{RESTORE}={row.version}", "Restore this version")


@admin.register(Pipeline)
class PipelineAdmin(BaseAdmin[Pipeline]):
    """Scheduling pipelines: operators edit them here or import them as files."""

    empty_note = (
        "No pipeline is stored: decisions are made by the one that is built in. Add one here, or "
        "./run manage import_pipelines FILE."
    )
    form = PipelineForm
    list_display = ("name", "state", "kind", "steps", "version", "changed")
    list_filter = ("kind", "ignore_preselection", "create_history")
    search_fields = ("name", "description")
    inlines = (PipelineVersionInline,)
    actions = None
    page_columns = ("name", "conditions", "version", "kind", "description", "content")

    def get_fields(self, request: HttpRequest, obj: Pipeline | None = None) -> Any:
        """Show the conditions above the form; without the right to change, the definition."""
        if not self.has_change_permission(request, obj):
            return self.page_columns
        fields = ("definition", "reason", "is_confirmed", "read_version")
        return fields if obj is None else ("conditions", *fields)

    def get_readonly_fields(self, request: HttpRequest, obj: Pipeline | None = None) -> Any:
        """Return what is shown and not edited."""
        if not self.has_change_permission(request, obj):
            return self.page_columns
        return ("conditions",)

    def get_form(
        self,
        request: HttpRequest,
        obj: Pipeline | None = None,
        change: bool = False,  # noqa: FBT001, FBT002 - signature of Django
        **kwargs: Any,
    ) -> type[PipelineForm]:
        """Fill the form with an earlier version's definition when one is to be restored."""
        form = cast("type[PipelineForm]", super().get_form(request, obj, change, **kwargs))
        if obj is not None and request.method == "GET":
            form.restored = version_to_restore(request, obj)
        return form

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show what restoring would change; nothing is written before the form is saved."""
        row = self.get_object(request, object_id)
        if row is not None and request.method == "GET":
            for line in stored_pipeline_warnings().get(row.name, ()):
                messages.warning(request, f"{row.name}: {line}.")
            if RESTORE in request.GET:
                self._announce_restore(request, row)
        return super().change_view(request, object_id, form_url, extra_context)

    def _announce_restore(self, request: HttpRequest, row: Pipeline) -> None:
        version = version_to_restore(request, row)
        if version is None:
            wanted = request.GET[RESTORE][:20]
            messages.error(request, f"{row.name} has no version {wanted} to restore.")
            return
        try:
            plan = plan_pipeline(spec_from_document(version.definition))
        except InvalidPipelineError as error:
            messages.error(request, f"Version {version.version} cannot be restored: {error}")
            return
        if plan.problems:
            problems = "; ".join(plan.problems)
            messages.error(request, f"Version {version.version} cannot be restored: {problems}")
        elif plan.verb == "keep":
            messages.info(request, f"Version {version.version} says what is in force already.")
        else:
            lines = "; ".join((*plan.changes, *plan.warnings))
            messages.warning(
                request,
                f"Not saved yet. Restoring version {version.version} would become version"
                f" {plan.version}: {lines}. Tick “Apply the plan” and save.",
            )

    def save_model(self, request: HttpRequest, obj: Pipeline, form: Any, change: Any) -> None:
        """Save through the service, which makes the version and audits."""
        save_pipeline(
            form.plan.spec,
            actor=request_actor(request),
            request_id=request_id_of(request),
            reason=form.cleaned_data["reason"],
            expected_version=form.cleaned_data["read_version"],
        )
        saved = Pipeline.objects.get(name=form.plan.spec.name)
        obj.pk, obj.name = saved.pk, saved.name

    def delete_model(self, request: HttpRequest, obj: Pipeline) -> None:
        """Remove through the service, which audits."""
        remove_pipeline(
            name=obj.name, actor=request_actor(request), request_id=request_id_of(request)
        )

    @admin.display(description="state")
    def state(self, row: Pipeline) -> SafeString:
        """Say whether it can be used."""
        try:
            conditions = load_row(row).conditions
        except InvalidPipelineError as error:
            return badge("bad", "damaged", str(error))
        if not conditions["Ready"][0]:
            return badge("bad", "not usable", conditions["Ready"][2])
        problems = [text for is_met, _, text in conditions.values() if not is_met]
        return badge("warn", "partly", "; ".join(problems)) if problems else badge("ok", "ready")

    @admin.display(description="conditions")
    def conditions(self, row: Pipeline) -> SafeString | str:
        """Show what became of the definition in this process."""
        try:
            conditions = load_row(row).conditions
        except (InvalidPipelineError, HeadroomError) as error:
            return str(error)
        return format_html_join(
            "",
            "<div>{} {} {}</div>",
            (
                (badge("ok" if is_met else "warn", name), reason, message)
                for name, (is_met, reason, message) in conditions.items()
            ),
        )

    content = shown(
        "definition",
        lambda row: format_html("<pre>{}</pre>", as_yaml(document_from_spec(spec_of(row)))),
    )

    @admin.display(description="steps")
    def steps(self, row: Pipeline) -> str:
        """Count the steps."""
        if row.detectors:
            return f"{len(row.detectors)} detectors"
        return f"{len(row.filters)} filters, {len(row.weighers)} weighers"

    changed = column("updated_at", "changed")
