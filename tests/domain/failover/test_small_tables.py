"""Patterns, names, sizes, rhythm and configuration (spec failover, 4, 6, 9.5, 10, 12)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from failover.conf import FailoverConfig, parse_duration
from failover.domain.names import SUFFIX_ALPHABET, reservation_name, zone_segment
from failover.domain.patterns import MalformedPatternError, compiled_pattern, required_count
from failover.domain.rhythm import RunResult, next_interval_seconds, selected, start_offset
from failover.validation import InvalidResourceKey, validate_resources


@pytest.mark.parametrize(
    ("requirements", "flavor", "expected"),
    [
        pytest.param({"m1.large": 2}, "m1.large", 2, id="exact"),
        pytest.param({"m1.*": 1}, "m1.large", 1, id="star"),
        pytest.param({"*": 1, "*hana": 3}, "m1.hana", 3, id="largest wins"),
        pytest.param({"*hana": 3, "*": 1}, "m1.hana", 3, id="largest wins, other order"),
        pytest.param({"*": 1}, "any-flavor", 1, id="any"),
        pytest.param({"m1.large": 2}, "m2.small", 0, id="nothing matches"),
        pytest.param({"*": 1}, "", 0, id="empty flavor"),
        pytest.param({}, "m1.large", 0, id="empty map"),
        pytest.param({"m1.large": 5, "m1.*": 2, "*": 1}, "m1.large", 5, id="three match"),
        pytest.param({"m1.*": 5, "m1.large": 0}, "m1.large", 5, id="exact cannot lower"),
        pytest.param({"[": 4, "*": 1}, "x", 1, id="bad pattern is skipped"),
        pytest.param({"*": 2}, "team/large", 0, id="star does not cross a slash"),
        pytest.param({"hana_[^x]*": 2}, "hana_c30", 2, id="negated class"),
        pytest.param({"hana_[^x]*": 2}, "hana_x30", 0, id="negated class excludes"),
        pytest.param({"[!x]": 2}, "!", 2, id="exclamation mark is literal"),
        pytest.param({"a?c": 2}, "abc", 2, id="question mark"),
        pytest.param({"a?c": 2}, "a/c", 0, id="question mark does not cross a slash"),
        pytest.param({"M1": 2}, "m1", 0, id="case matters"),
        pytest.param({r"a\*": 2}, "a*", 2, id="escaped star"),
        pytest.param({r"a\*": 2}, "ab", 0, id="escaped star is literal"),
        pytest.param({"c[0-9]": 2}, "c7", 2, id="range"),
        pytest.param({r"[\]x]": 2}, "]", 2, id="escaped bracket in a class"),
        pytest.param({"x": -1}, "x", 0, id="negative count never wins"),
    ],
)
def test_required_count_follows_the_table(
    requirements: dict[str, int], flavor: str, expected: int
) -> None:
    assert required_count(requirements, flavor) == expected


@pytest.mark.parametrize("pattern", ["[", "[]", "[^]", "[a-]", "a\\", "abc[", "[a", "[-a]"])
def test_malformed_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(MalformedPatternError):
        compiled_pattern(pattern)


@given(st.text(alphabet="ab[]^-\\*?/!", max_size=8), st.text(alphabet="ab/]-", max_size=5))
def test_any_pattern_is_refused_or_judges_any_name(pattern: str, name: str) -> None:
    assert required_count({pattern: 1}, name) in {0, 1}


@pytest.mark.parametrize(
    ("zone", "segment"),
    [
        ("qa-de-1a", "qa-de-1a"),
        ("az1", "az1"),
        ("AZ1", "az1"),
        ("az_1", "az1"),
        ("az/1", "az1"),
        ("az.1", "az1"),
        ("az___1", "az1"),
        ("-az1-", "az1"),
        ("", "unknown"),
        ("___", "unknown"),
        ("aa-bb-xxa-extra", "aa-bb-xxa"),
        ("aa-bb-xx-yyy", "aa-bb-xx"),
    ],
)
def test_zone_segment_follows_the_table(zone: str, segment: str) -> None:
    assert zone_segment(zone) == segment
    assert reservation_name(zone, "bcdfg") == f"failover-{segment}-bcdfg"


def test_suffixes_have_no_vowels_and_no_look_alikes() -> None:
    assert not set(SUFFIX_ALPHABET) & set("aeiou013")
    assert len(set(SUFFIX_ALPHABET)) == 27


@pytest.mark.parametrize(
    ("missing", "limit", "run_number", "interval", "offset", "taken", "hit"),
    [
        pytest.param(10, 3, 1, 4, 0, [0, 1, 2], True, id="limited"),
        pytest.param(10, 3, 4, 4, 8, [8, 9, 0], True, id="turn of rotation"),
        pytest.param(10, 3, 4, 0, 0, [0, 1, 2], True, id="rotation off"),
        pytest.param(10, 0, 4, 4, 0, list(range(10)), False, id="no limit"),
        pytest.param(5, 10, 4, 4, 0, list(range(5)), False, id="limit above"),
        pytest.param(10, 10, 4, 4, 0, list(range(10)), False, id="limit equal"),
        pytest.param(0, 3, 4, 4, 0, [], False, id="nothing missing"),
        pytest.param(10, -1, 1, 4, 0, list(range(10)), False, id="negative limit"),
    ],
)
def test_selection_follows_the_table(  # noqa: PLR0917 - columns of the table
    missing: int,
    limit: int,
    run_number: int,
    interval: int,
    offset: int,
    taken: list[int],
    hit: bool,
) -> None:
    start = start_offset(
        missing,
        limit=limit,
        run_number=run_number,
        rotation_interval=interval,
        draw=lambda below: 8 % below,
    )
    assert start == offset
    assert selected(range(missing), limit=limit, offset=start) == (taken, hit)


@pytest.mark.parametrize(
    ("hit_limit", "succeeded", "failed", "bounds", "seconds"),
    [
        pytest.param(False, 10, 0, (1, 99), 30, id="limit not hit"),
        pytest.param(True, 10, 0, (1, 99), 0.1, id="goes well"),
        pytest.param(True, 0, 0, (1, 99), 30, id="no success"),
        pytest.param(True, 0, 0, (0, 99), 0.1, id="no success needed"),
        pytest.param(True, 1, 99, (1, 99), 0.1, id="failures at the bound"),
        pytest.param(True, 1, 100, (1, 99), 30, id="failures above the bound"),
        pytest.param(True, 5, 1, (1, 0), 30, id="no failure allowed"),
        pytest.param(True, 5, 0, (1, 0), 0.1, id="no failure happened"),
    ],
)
def test_next_run_follows_the_table(
    hit_limit: bool, succeeded: int, failed: int, bounds: tuple[int, int], seconds: float
) -> None:
    result = RunResult(hit_limit=hit_limit, succeeded=succeeded, failed=failed)

    def after(run: RunResult | None, short_interval_seconds: float) -> float:
        return next_interval_seconds(
            run,
            interval_seconds=30.0,
            short_interval_seconds=short_interval_seconds,
            min_successes=bounds[0],
            max_failures=bounds[1],
        )

    assert after(result, 0.1) == seconds
    assert after(result, 0.0) == 30
    assert after(None, 0.1) == 30


DEFAULTS = FailoverConfig.defaults()


@pytest.mark.parametrize(
    ("document", "name", "expected"),
    [
        pytest.param({}, "max_vms_to_process", 30, id="unset"),
        pytest.param({}, "limit_one_new_reservation_per_hypervisor", True, id="unset switch"),
        pytest.param(
            {"limitOneNewReservationPerHypervisor": False},
            "limit_one_new_reservation_per_hypervisor",
            False,
            id="switch off",
        ),
        pytest.param({"maxVMsToProcess": 0}, "max_vms_to_process", 30, id="zero is unset"),
        pytest.param({"maxVMsToProcess": -1}, "max_vms_to_process", -1, id="unlimited"),
        pytest.param(
            {"minSuccessForShortInterval": 0}, "min_success_for_short_interval", 0, id="zero kept"
        ),
        pytest.param(
            {"maxFailuresForShortInterval": 0},
            "max_failures_for_short_interval",
            0,
            id="zero kept 2",
        ),
        pytest.param(
            {"vmSelectionRotationInterval": 0},
            "vm_selection_rotation_interval",
            0,
            id="never rotate",
        ),
        pytest.param(
            {"flavorFailoverRequirements": {}}, "flavor_failover_requirements", {}, id="empty map"
        ),
        pytest.param({}, "flavor_failover_requirements", {"*": 2}, id="no map"),
        pytest.param(
            {"shortReconcileInterval": "0s"},
            "short_reconcile_interval",
            timedelta(milliseconds=100),
            id="zero duration",
        ),
        pytest.param(
            {"reconcileInterval": "1h30m"},
            "reconcile_interval",
            timedelta(minutes=90),
            id="duration",
        ),
        pytest.param({"schedulerURL": ""}, "scheduler_url", DEFAULTS.scheduler_url, id="text"),
    ],
)
def test_defaults_are_applied_as_in_the_table(
    document: dict[str, object], name: str, expected: object
) -> None:
    assert getattr(FailoverConfig.from_published(document).with_defaults(), name) == expected


def test_empty_configuration_is_all_defaults() -> None:
    assert FailoverConfig().with_defaults() == DEFAULTS


@pytest.mark.parametrize(
    ("text", "seconds"), [("100ms", 0.1), ("30s", 30), ("15m", 900), ("1h30m", 5400), ("0", 0)]
)
def test_durations_are_read_as_go_writes_them(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "30", "-5s", "5 s", "s"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("document", [{"reconcileInterval": "-1s"}, {"unknown": 1}])
def test_bad_configuration_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"unknown keys|not a duration"):
        FailoverConfig.from_published(document)


def test_negative_duration_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        FailoverConfig(reconcile_interval=timedelta(seconds=-1))


def test_only_cpu_and_memory_are_resources() -> None:
    validate_resources({"cpu": 1, "memory": 2})
    validate_resources({})
    validate_resources(None)
    with pytest.raises(InvalidResourceKey, match=r"vcpus: allowed are cpu and memory"):
        validate_resources({"memory": 1, "vcpus": 1})
