"""What fuzzing found once, each as small as it gets."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings

from tests.fuzz.region import Known, body_of, send_change
from tests.fuzz.wsgi import call

pytestmark = pytest.mark.django_db


def test_dry_run_without_projects_is_accepted(region: tuple[Known, ...]) -> None:
    assert region
    answer = send_change(body_of({}, is_dry_run=True))
    assert (answer.status, answer.json()) == (200, {})


def test_admin_query_with_a_nul_character_is_refused(region: tuple[Known, ...]) -> None:
    assert region
    answer = call("GET", "/admin/hosts/host/", query="zone=%00")
    assert (answer.status, answer.body) == (400, b"Bad request")
    assert call("GET", "/commitments/v1/info", query="zone=%00").status == 200


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/api/v1/hosts/web/decommission", "application/problem+json"),
        ("/scheduler/nova/external", "application/json"),
        ("/commitments/v1/info", "text/plain"),
    ],
)
def test_host_that_is_no_name_is_refused_as_each_api_refuses(path: str, kind: str) -> None:
    answer = call("GET", path, headers={"Host": "A;8IP:_kR"})
    assert answer.status == 400
    assert answer.headers["content-type"].partition(";")[0] == kind
    assert b"host that is not served here" in answer.body


def test_nudge_of_a_dead_broker_does_not_wait_between_attempts() -> None:
    options: Any = settings.CELERY["broker_transport_options"]
    assert (options["max_retries"], options["interval_start"]) == (1, 0)
