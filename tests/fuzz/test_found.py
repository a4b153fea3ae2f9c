"""What fuzzing found once, each as small as it gets."""

from __future__ import annotations

import pytest

from tests.fuzz.region import Known, body_of, send_change

pytestmark = pytest.mark.django_db


def test_dry_run_without_projects_is_accepted(region: tuple[Known, ...]) -> None:
    assert region
    answer = send_change(body_of({}, is_dry_run=True))
    assert (answer.status, answer.json()) == (200, {})
