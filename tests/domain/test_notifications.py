"""Nova's own published samples of notifications (doc/notification_samples of its repository)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hosts.domain.notifications import DATA, EVENTS, MOVES, Hint, hint_of, hints_of

SAMPLES: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "nova-notifications.json").read_text(encoding="utf-8")
)
VM = "178b0921-8f85-4257-88b6-2e743b5a975c"
OF_THE_VM = Hint("servers", VM)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("instance-create-end", OF_THE_VM),
        ("instance-create-start", None),
        ("instance-create-error", OF_THE_VM),
        ("instance-delete-end", OF_THE_VM),
        ("instance-delete-end_compute_down", OF_THE_VM),
        ("instance-resize_finish-end", OF_THE_VM),
        ("instance-live_migration_post_dest-end", OF_THE_VM),
        ("instance-live_migration_rollback-end", OF_THE_VM),
        ("instance-evacuate", OF_THE_VM),
        ("instance-shelve_offload-end", OF_THE_VM),
        ("instance-unshelve-end", OF_THE_VM),
        ("instance-rebuild-end", OF_THE_VM),
        ("instance-update", None),
        ("instance-exists", None),
        ("compute-exception", Hint("hosts")),
        ("service-create", Hint("hosts")),
        ("service-update", Hint("hosts")),
        ("service-delete", Hint("hosts")),
        ("aggregate-create-end", Hint("hosts")),
        ("aggregate-add_host-end", Hint("hosts")),
        ("aggregate-remove_host-start", None),
        ("aggregate-update_metadata-end", Hint("hosts")),
        ("aggregate-cache_images-end", None),
        ("flavor-create", Hint("flavors")),
        ("flavor-update", Hint("flavors")),
        ("flavor-delete", Hint("flavors")),
        ("server_group-add_member", Hint("server_groups")),
        ("scheduler-select_destinations-end", None),
        ("volume-usage", None),
    ],
)
def test_samples_of_nova(name: str, expected: Hint | None) -> None:
    sample = SAMPLES["samples"][name]
    assert hint_of(sample["event_type"], sample["payload"]) == expected


def test_a_task_of_the_conductor_that_failed_names_its_vm() -> None:
    sample = SAMPLES["samples"]["compute_task-build_instances-error"]
    instance_uuid = sample["payload"][DATA]["instance_uuid"]
    assert hint_of(sample["event_type"], sample["payload"]) == Hint("servers", instance_uuid)


@pytest.mark.parametrize(
    ("event_type", "is_of_the_vm"),
    [
        ("instance.live_migration_pre.start", False),
        ("instance.live_migration_post.end", True),
        ("instance.live_migration_rollback.end", True),
        ("instance.resize_prep.start", False),
        ("instance.resize.error", True),
        ("instance.resize_confirm.end", True),
        ("instance.resize_revert.end", True),
        ("instance.evacuate", True),
    ],
)
def test_a_vm_on_its_way_hints_at_migrations_as_well(event_type: str, is_of_the_vm: bool) -> None:
    expected = (OF_THE_VM,) if is_of_the_vm else ()
    found = hints_of(event_type, {DATA: {"uuid": VM}})
    assert found == (*expected, Hint("migrations"))


def test_a_move_that_the_conductor_gave_up_hints_at_migrations_as_well() -> None:
    found = hints_of("compute_task.migrate_server.error", {DATA: {"instance_uuid": VM}})
    assert found == (OF_THE_VM, Hint("migrations"))


@pytest.mark.parametrize(
    "event_type", ["instance.create.end", "compute_task.build_instances.error"]
)
def test_what_moves_nothing_does_not_hint_at_migrations(event_type: str) -> None:
    assert hints_of(event_type, {DATA: {"uuid": VM, "instance_uuid": VM}}) == (OF_THE_VM,)


@pytest.mark.parametrize(
    "object_id",
    [None, 7, "", "x" * 36, VM.upper(), f"{VM}\n", f"{VM}/../..", f"{VM}?x=1", [VM], {"a": VM}],
)
def test_what_is_no_id_of_a_vm_hints_at_nothing(object_id: object) -> None:
    assert hint_of("instance.create.end", {DATA: {"uuid": object_id}}) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(VM),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([DATA, "uuid", "instance_uuid", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from([glob.replace("*", "x") for glob, _, _ in EVENTS]) | JSON, JSON)
def test_whatever_comes_gives_a_hint_of_a_known_kind_or_none(event: object, payload: Any) -> None:
    found = hint_of(event, payload)
    assert found in {None, OF_THE_VM, Hint("hosts"), Hint("flavors"), Hint("server_groups")}


@given(st.sampled_from([glob.replace("*", "x") for glob in MOVES]) | JSON, JSON)
def test_whatever_comes_hints_at_each_thing_once(event: object, payload: Any) -> None:
    found = hints_of(event, payload)
    assert len(set(found)) == len(found) <= 2
    assert {hint.kind for hint in found} <= {
        "servers",
        "hosts",
        "flavors",
        "server_groups",
        "migrations",
    }
