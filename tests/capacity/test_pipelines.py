from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from capacity.bootstrap import create_shipped_pipelines
from capacity.checks import check_pipelines
from capacity.models import Pipeline, PipelineVersion
from capacity.nova.pipeline_document import (
    document_changes,
    document_from_spec,
    spec_from_document,
)
from capacity.nova.pipelines import (
    SHIPPED_ACTOR,
    StalePipeline,
    active_pipelines,
    ensure_shipped_pipelines,
    load_row,
    plan_pipeline,
    remove_pipeline,
    save_pipeline,
    spec_of,
)
from journal.actors import Actor
from journal.errors import InvalidInput
from journal.models import AuditEntry, Outbox
from scheduling.pipelines import InvalidPipelineError, PipelineSpec, StepParam, StepSpec
from scheduling.shipped_pipelines import SHIPPED

OPERATOR = Actor(name="operator")
ADVICE = "choose it for them with HEADROOM_SLOTS__GROUP_PIPELINES"
ZONE = StepSpec(name="filter_correct_az")
STATUS = StepSpec(name="filter_status_conditions")


def save(spec: PipelineSpec, **fields: Any) -> Any:
    return save_pipeline(spec, actor=OPERATOR, request_id="req-1", **fields)


def excluding(*hosts: str) -> StepSpec:
    return StepSpec(
        name="filter_exclude_hosts", params=(StepParam(key="excludedHosts", strings=hosts),)
    )


# -- shipped pipelines


@pytest.mark.django_db
@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_shipped_pipeline_is_there_as_version_1(name: str) -> None:
    row = Pipeline.objects.get(name=name)
    assert row.version == 1
    assert document_from_spec(spec_of(row)) == document_from_spec(SHIPPED[name])
    assert row.versions.get().definition == document_from_spec(SHIPPED[name])
    assert not load_row(row).unknown_steps


@pytest.mark.django_db
def test_usable_pipelines_are_those_with_filters_and_weighers() -> None:
    detectors = {name for name, spec in SHIPPED.items() if spec.type == "detector"}
    assert set(active_pipelines()) == set(SHIPPED) - detectors
    assert detectors == {"kvm-descheduler"}
    general = active_pipelines()["kvm-general-purpose-load-balancing"]
    assert general.ignore_preselection
    assert general.create_history
    assert general.pipeline.version == 1
    assert [step.name for step in general.pipeline.filters[:3]] == [
        "filter_status_conditions",
        "filter_correct_az",
        "filter_host_instructions",
    ]
    assert not active_pipelines()["kvm-report-capacity"].create_history


@pytest.mark.django_db
def test_migrating_again_neither_undoes_edits_nor_brings_back_what_was_removed() -> None:
    name = "kvm-report-capacity"
    save(PipelineSpec(name=name, filters=(ZONE,)))
    remove_pipeline(name="kvm-descheduler", actor=OPERATOR, request_id="req-1")
    Pipeline.objects.filter(name="kvm-hana-bin-packing").delete()
    create_shipped_pipelines()
    assert [step["name"] for step in Pipeline.objects.get(name=name).filters] == [ZONE.name]
    assert not Pipeline.objects.filter(name="kvm-descheduler").exists()
    assert Pipeline.objects.filter(name="kvm-hana-bin-packing").exists()
    assert ensure_shipped_pipelines(request_id="req-2") == ()


@pytest.mark.django_db
def test_pipelines_that_nobody_edited_follow_the_product() -> None:
    old, edited = "kvm-general-purpose-load-balancing", "kvm-hana-bin-packing"
    for name in (old, edited):
        earlier = replace(SHIPPED[name], filters=SHIPPED[name].filters[:6])
        save_pipeline(earlier, actor=SHIPPED_ACTOR, request_id="earlier release")
    save(replace(SHIPPED[edited], filters=SHIPPED[edited].filters[:5]))
    assert ensure_shipped_pipelines(request_id="req-1") == (old,)
    assert spec_of(Pipeline.objects.get(name=old)).filters == SHIPPED[old].filters
    assert Pipeline.objects.get(name=old).version == 3
    assert len(Pipeline.objects.get(name=edited).filters) == 5
    assert ensure_shipped_pipelines(request_id="req-2") == ()


@pytest.mark.django_db
def test_what_edited_pipelines_lack_is_told(settings: Any) -> None:
    assert check_pipelines(["default"]) == []
    assert check_pipelines() == []
    name = "kvm-general-purpose-load-balancing"
    own = StepSpec(
        name="filter_exclude_hosts", params=(StepParam(key="excludedHosts", strings=("h1",)),)
    )
    kept = tuple(step for step in SHIPPED[name].filters if step.name != "filter_external_customer")
    save(replace(SHIPPED[name], filters=(*kept, own)))
    slots = settings.HEADROOM.slots.model_copy(update={"group_pipelines": {"g": name}})
    settings.HEADROOM = settings.HEADROOM.model_copy(update={"slots": slots})
    told = [message.msg.split(": ", 1) for message in check_pipelines(["default"])]
    assert {subject for subject, _ in told} == {f"pipeline {name}"}
    assert [line for _, line in told] == [
        "it was edited and lacks filters that it is shipped with: filter_external_customer",
        "it judges slots and lacks filters of VMs: filter_external_customer",
        f"slots do not pass its own filters (filter_exclude_hosts): {ADVICE}",
    ]


# -- saving


@pytest.mark.django_db
def test_each_change_is_a_version_that_is_audited_and_announced() -> None:
    plan = save(PipelineSpec(name="mine", filters=(ZONE,)), reason="first")
    assert (plan.verb, plan.version) == ("create", 1)
    plan = save(PipelineSpec(name="mine", filters=(STATUS, ZONE)), reason="second")
    assert (plan.verb, plan.version) == ("change", 2)
    assert plan.changes == ("filter filter_status_conditions is added at place 1 (no parameters)",)
    versions = PipelineVersion.objects.filter(pipeline__name="mine").order_by("version")
    assert [(row.version, row.actor) for row in versions] == [(1, "operator"), (2, "operator")]
    assert [len(row.definition["filters"]) for row in versions] == [1, 2]
    entries = AuditEntry.objects.filter(object_type="pipeline", object_id="mine").order_by("id")
    assert [(entry.action, entry.reason) for entry in entries] == [
        ("pipeline_created", "first"),
        ("pipeline_changed", "second"),
    ]
    assert Outbox.objects.filter(topic="pipeline", object_id="mine").count() == 2


@pytest.mark.django_db
def test_saving_the_same_definition_writes_nothing() -> None:
    save(PipelineSpec(name="mine", filters=(ZONE,)))
    written = AuditEntry.objects.count()
    plan = save(PipelineSpec(name="mine", filters=(ZONE,)))
    assert (plan.verb, plan.version, plan.changes) == ("keep", 1, ())
    assert AuditEntry.objects.count() == written


@pytest.mark.django_db
def test_a_plan_writes_nothing() -> None:
    plan = plan_pipeline(PipelineSpec(name="mine", filters=(ZONE,)))
    assert plan.verb == "create"
    assert not Pipeline.objects.filter(name="mine").exists()


@pytest.mark.django_db
def test_who_saves_what_another_changed_meanwhile_is_told() -> None:
    save(PipelineSpec(name="mine", filters=(ZONE,)))
    save(PipelineSpec(name="mine", filters=(STATUS,)))
    with pytest.raises(StalePipeline, match="version 2, not 1"):
        save(PipelineSpec(name="mine"), expected_version=1)
    with pytest.raises(StalePipeline):
        save(PipelineSpec(name="mine"), expected_version=0)
    assert save(PipelineSpec(name="mine"), expected_version=2).version == 3


@pytest.mark.django_db
def test_an_unknown_step_is_saved_with_a_warning_and_left_out() -> None:
    plan = save(PipelineSpec(name="mine", filters=(StepSpec(name="filter_of_tomorrow"), ZONE)))
    assert plan.warnings == ("unknown filter filter_of_tomorrow will be ignored",)
    assert [step.name for step in active_pipelines()["mine"].pipeline.filters] == [ZONE.name]
    conditions = load_row(Pipeline.objects.get(name="mine")).conditions
    assert conditions["Ready"][0]
    assert conditions["AllStepsIndexed"][:2] == (False, "PipelineContainsUnknownSteps")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param(
            PipelineSpec(
                name="mine",
                filters=(
                    StepSpec(name="filter_external_customer"),
                    StepSpec(name="filter_correct_az", params=(StepParam(key="x", boolean=True),)),
                ),
            ),
            ("filter_external_customer", "filter_correct_az", "unknown parameter x"),
            id="invalid parameters, all messages joined",
        ),
        pytest.param(
            PipelineSpec(name="mine", detectors=(StepSpec(name="avoid_high_steal_pct"),)),
            ("no detectors",),
            id="detectors among filters",
        ),
        pytest.param(
            PipelineSpec(name="mine", type="detector", filters=(ZONE,)),
            ("no filters or weighers",),
            id="filters among detectors",
        ),
        pytest.param(PipelineSpec(name="mine", type="x"), ("unknown pipeline type",), id="type"),
        pytest.param(
            PipelineSpec(name="mine", scheduling_domain="x"), ("scheduling domain",), id="domain"
        ),
    ],
)
def test_a_refused_definition_is_not_saved(spec: PipelineSpec, words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        save(spec)
    assert all(word in caught.value.message for word in words)
    assert not Pipeline.objects.filter(name="mine").exists()


@pytest.mark.django_db
def test_removing_a_pipeline_is_audited_and_takes_its_versions() -> None:
    save(PipelineSpec(name="mine"))
    assert remove_pipeline(name="mine", actor=OPERATOR, request_id="req-1")
    assert not remove_pipeline(name="mine", actor=OPERATOR, request_id="req-1")
    assert "mine" not in active_pipelines()
    assert AuditEntry.objects.filter(action="pipeline_removed", object_id="mine").exists()


@pytest.mark.django_db(transaction=True)
def test_active_pipelines_are_kept_until_a_row_changes() -> None:
    first = active_pipelines()
    assert active_pipelines() is first
    save(PipelineSpec(name="mine", filters=(ZONE,)))
    second = active_pipelines()
    assert second["mine"].version == 1
    with connection.cursor() as cursor:
        cursor.execute("UPDATE capacity_pipeline SET version = 7 WHERE name = 'mine'")
    assert active_pipelines()["mine"].version == 7
    Pipeline.objects.filter(name="mine").delete()
    assert "mine" not in active_pipelines()


@pytest.mark.django_db(transaction=True)
def test_what_is_rolled_back_is_never_kept() -> None:
    with transaction.atomic():
        save(PipelineSpec(name="mine"))
        assert "mine" in active_pipelines()
        transaction.set_rollback(True)
    assert "mine" not in active_pipelines()


# -- files


@pytest.mark.django_db
def test_exported_pipelines_import_as_unchanged(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "pipelines.yaml"
    call_command("export_pipelines", output=str(path))
    assert len(yaml.safe_load(path.read_text())["pipelines"]) == len(SHIPPED)
    call_command("import_pipelines", str(path), json=True)
    done = orjson.loads(capsys.readouterr().out)
    assert {entry["outcome"] for entry in done["pipelines"]} == {"unchanged"}
    assert not PipelineVersion.objects.filter(version__gt=1).exists()


def write(tmp_path: Path, *documents: Any) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"pipelines": list(documents)}))
    return str(path)


@pytest.mark.django_db
def test_a_dry_run_tells_and_changes_nothing(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path, {"name": "mine", "filters": [{"name": "filter_correct_az"}]})
    call_command("import_pipelines", path, dry_run=True, prune=True)
    told = capsys.readouterr().out
    assert "dry run" in told
    assert "mine: created, version 1" in told
    assert "kvm-descheduler: removed" in told
    assert not Pipeline.objects.filter(name="mine").exists()
    assert Pipeline.objects.count() == len(SHIPPED)


@pytest.mark.django_db
def test_an_import_creates_changes_and_prunes(tmp_path: Path, capsys: Any) -> None:
    save(PipelineSpec(name="mine"))
    path = write(tmp_path, {"name": "mine", "filters": [{"name": "x"}]}, {"name": "other"})
    call_command("import_pipelines", path, prune=True)
    assert "warning: unknown filter x will be ignored" in capsys.readouterr().out
    rows = Pipeline.objects.order_by("name").values_list("name", "version")
    assert list(rows) == [("mine", 2), ("other", 1)]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "one field, pipelines"),
        ("[]", "one field, pipelines"),
        ("pipelines: {}", "that is a list"),
        ("pipelines: []\nother: 1", "one field"),
        ("{", "not valid YAML"),
        ("!!python/object:os.system {}", "not valid YAML"),
        ("pipelines: [1]", "pipelines[0]: a pipeline must be an object"),
        ("pipelines: [{}]", "name: must not be empty"),
        ("pipelines: [{name: a}, {name: a}]", "a: is defined twice"),
        ("pipelines: [{name: a, x: 1}]", "x: unknown field"),
        ("pipelines: [{name: a, filters: 1}]", "filters: must be a list"),
        ("pipelines: [{name: a, filters: [{}]}]", "filters[0].name"),
        ("pipelines: [{name: a, filters: [{name: f, multiplier: 2}]}]", "unknown field"),
        ("pipelines: [{name: a, weighers: [{name: w, multiplier: x}]}]", "finite number"),
        ("pipelines: [{name: a, weighers: [{name: w, multiplier: .inf}]}]", "finite number"),
        ("pipelines: [{name: a, ignore_preselection: 1}]", "true or false"),
        (
            (
                "pipelines: [{name: a, filters: [{name: filter_exclude_hosts,"
                " params: [{key: excludedHosts, stringListValue: [1]}]}]}]"
            ),
            "stringListValue: must be a list of texts",
        ),
        (
            (
                "pipelines: [{name: a, filters: [{name: filter_exclude_hosts,"
                " params: [{key: excludedHosts}]}]}]"
            ),
            "exactly one value, not 0",
        ),
        (
            (
                "pipelines: [{name: a, filters: [{name: filter_quota_enforcement,"
                " params: [{key: enforce, boolValue: true, intValue: 1}]}]}]"
            ),
            "exactly one value, not 2",
        ),
        (
            (
                "pipelines: [{name: a, filters: [{name: filter_quota_enforcement,"
                " params: [{key: enforce, boolValue: true}, {key: enforce, boolValue: true}]}]}]"
            ),
            "duplicate parameter",
        ),
        (
            (
                "pipelines: [{name: a, filters: [{name: filter_quota_enforcement,"
                " params: [{key: enforce, stringValue: 'yes'}]}]}]"
            ),
            "must be a boolean",
        ),
    ],
)
def test_a_malformed_file_changes_nothing(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    good = write(tmp_path, {"name": "good"})
    with pytest.raises(CommandError) as caught:
        call_command("import_pipelines", good, str(path))
    assert words in str(caught.value)
    assert caught.value.returncode == 2
    assert not Pipeline.objects.filter(name__in=["good", "a"]).exists()


@pytest.mark.django_db
def test_missing_files_and_names_are_told(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file"):
        call_command("import_pipelines", str(tmp_path / "absent.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"\xff")
    with pytest.raises(CommandError, match="not UTF-8"):
        call_command("import_pipelines", str(tmp_path / "latin.yaml"))
    with pytest.raises(CommandError, match="no pipeline is named absent"):
        call_command("export_pipelines", "absent")
    with pytest.raises(CommandError, match="cannot write"):
        call_command("export_pipelines", output=str(tmp_path / "no" / "such" / "folder"))


# -- documents

NAMES = st.text("abc_", min_size=1, max_size=6)
PARAMS = st.one_of(
    st.builds(StepParam, key=NAMES, string=st.text(max_size=5).filter(lambda t: "\x00" not in t)),
    st.builds(StepParam, key=NAMES, boolean=st.booleans()),
    st.builds(StepParam, key=NAMES, integer=st.integers(-5, 5)),
    st.builds(StepParam, key=NAMES, number=st.floats(-5, 5)),
    st.builds(StepParam, key=NAMES, strings=st.lists(NAMES, max_size=3).map(tuple)),
    st.builds(StepParam, key=NAMES, number_map=st.dictionaries(NAMES, st.floats(-5, 5))),
)
STEPS = st.builds(StepSpec, name=NAMES, params=st.lists(PARAMS, max_size=3).map(tuple))
WEIGHERS = st.builds(
    StepSpec,
    name=NAMES,
    params=st.lists(PARAMS, max_size=2).map(tuple),
    multiplier=st.floats(-5, 5),
)
SPECS = st.builds(
    PipelineSpec,
    name=NAMES,
    ignore_preselection=st.booleans(),
    create_history=st.booleans(),
    filters=st.lists(STEPS, max_size=4).map(tuple),
    weighers=st.lists(WEIGHERS, max_size=3).map(tuple),
)


@given(spec=SPECS)
def test_a_document_gives_back_its_definition_through_json_and_yaml(spec: PipelineSpec) -> None:
    document = document_from_spec(spec)
    assert spec_from_document(orjson.loads(orjson.dumps(document))) == spec
    assert spec_from_document(yaml.safe_load(yaml.safe_dump(document))) == spec


@given(before=SPECS, after=SPECS)
def test_changes_are_told_exactly_when_there_are_any(
    before: PipelineSpec, after: PipelineSpec
) -> None:
    old, new = document_from_spec(before), document_from_spec(after)
    assert document_changes(old, old) == ()
    assert bool(document_changes(old, new)) == (old != new)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
FIELDS = ("name", "type", "filters", "weighers", "params", "key", "multiplier", "floatMapValue")


@given(document=st.dictionaries(st.sampled_from(FIELDS), JSON | st.lists(JSON)) | JSON)
def test_any_document_is_a_definition_or_refused(document: Any) -> None:
    with contextlib.suppress(InvalidPipelineError):
        spec = spec_from_document(document)
        assert spec_from_document(document_from_spec(spec)) == spec
