"""The rights of the cloud's reader are those of the manual, and what it asks the database works."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud import reader
from hosts.clients.listing import COMPUTE, IDENTITY, PLACEMENT
from hosts.cloud_checks import SERVICES
from placement.policy import RULES
from tests.cloud.test_claims import rows
from tests.hosts.feed_cloud import LiveCloud, read_cloud

ROOT = Path(__file__).parents[2]
#: What the role ``reader`` may do in its own project, or what has no effect without ``admin``.
OF_READERS = {
    "os_compute_api:os-flavor-extra-specs:index",
    "os_compute_api:os-server-groups:index:all_projects",
}


def test_each_service_gets_the_rules_of_the_manual() -> None:
    found = reader.policies(reader.documented_rules(ROOT))
    assert found["nova"]["os_compute_api:os-migrations:index:host"] == (
        "rule:context_is_admin or role:headroom_reader"
    )
    assert found["keystone"]["identity:list_domains"].endswith(" or role:headroom_reader")
    assert set(found["placement"]) <= {*RULES}
    for service, name in ((IDENTITY, "keystone"), (COMPUTE, "nova"), (PLACEMENT, "placement")):
        looked_at = {
            rule for wanted in SERVICES[service] for rule in (wanted.rule, *wanted.fields.values())
        }
        assert looked_at - OF_READERS <= set(found[name]), "the doctor asks for what is not named"


@pytest.mark.django_db(transaction=True)
def test_what_is_asked_of_the_database_is_there() -> None:
    read_cloud(LiveCloud(hosts=2))
    assert rows(reader.HOSTS) == [(2,)]
    assert rows(reader.QUIET) == [(1,)]
    assert rows(reader.READ_ANEW + " RETURNING 1") == []
