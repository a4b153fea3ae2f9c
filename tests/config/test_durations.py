"""Settings in seconds take durations (spec commitments, 21: ``5m``, ``90s``, ``500ms``)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from config.environment import NESTING, PREFIX, ConfigurationError, Environment, load_environment

DEBUG = {"HEADROOM_DEBUG": "true"}


def in_seconds(model: type[BaseModel] = Environment, prefix: str = PREFIX) -> Iterator[str]:
    for name, field in model.model_fields.items():
        full = f"{prefix}{name.upper()}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from in_seconds(field.annotation, full + NESTING)
        elif name.endswith("_seconds"):
            yield full


def setting(name: str, given: Environment) -> object:
    found: object = given
    for part in name.removeprefix(PREFIX).lower().split(NESTING):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", list(in_seconds()))
def test_every_setting_in_seconds_takes_a_duration(name: str) -> None:
    default = setting(name, load_environment(DEBUG))
    assert isinstance(default, int | float)
    milliseconds = f"{round(default * 1000)}ms"
    given = setting(name, load_environment({**DEBUG, name: milliseconds}))
    assert (given, type(given)) == (default, type(default))


@pytest.mark.parametrize(
    ("name", "text", "seconds"),
    [
        ("USAGE__COOLDOWN_SECONDS", "5m", 300),
        ("USAGE__COOLDOWN_SECONDS", "90s", 90),
        ("USAGE__COOLDOWN_SECONDS", "90", 90),
        ("USAGE__COOLDOWN_SECONDS", " 1h30m ", 5400),
        ("LIQUID__CHANGE_TIMEOUT_SECONDS", "500ms", 0.5),
        ("LIQUID__CHANGE_TIMEOUT_SECONDS", "1.5", 1.5),
        ("LOCK_TIMEOUT_SECONDS", "1500ms", 1.5),
        ("SYNC", '{"interval_seconds": "2h"}', 7200),
    ],
)
def test_durations_and_numbers(name: str, text: str, seconds: float) -> None:
    given = load_environment({**DEBUG, PREFIX + name: text})
    found = given.sync.interval_seconds if name == "SYNC" else setting(PREFIX + name, given)
    assert found == seconds


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("USAGE__COOLDOWN_SECONDS", "5 minutes", "or a duration such as 90s"),
        ("USAGE__COOLDOWN_SECONDS", "", "or a duration such as 90s"),
        ("USAGE__COOLDOWN_SECONDS", "10500ms", "integer"),
        ("USAGE__COOLDOWN_SECONDS", "9s", "greater than or equal to 10"),
        ("LOCK_TIMEOUT_SECONDS", "1d", "or a duration such as 90s"),
        ("DECISIONS__RETENTION_DAYS", "24h", "integer"),
    ],
)
def test_bad_ones_stop_the_start_with_one_line(name: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as raised:
        load_environment({**DEBUG, PREFIX + name: text})
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(PREFIX + name)
