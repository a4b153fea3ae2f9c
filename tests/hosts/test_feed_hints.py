"""Hints of what changed: the next look asks for it, and nothing is believed for them."""

from __future__ import annotations

import pytest

from hosts.domain.notifications import Hint
from hosts.feed import hints
from hosts.feed.hints import hinted_kinds, note_hints
from hosts.feed.lists import PassKind
from hosts.models import (
    DeletedVM,
    FeedHint,
)
from tests.hosts.feed_cloud import (
    LiveCloud,
    cloud_of_five,
    in_a_thread,
    pass_time,
    places,
    read_cloud,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cloud() -> LiveCloud:
    return cloud_of_five()


def test_hints_make_the_next_look_ask_for_exactly_these_vms(cloud: LiveCloud) -> None:
    pass_time(cloud, hours=-1)
    for server in cloud.servers:
        cloud.touch(server)
    read_cloud(cloud)
    cloud.put("v1", 1)
    cloud.delete("v2")
    read_cloud(cloud, PassKind.CHANGES)
    assert places()["v1"] == "node2", "a hint was not needed"

    stranger = "no-such-vm"
    for _ in range(2):
        note_hints([Hint(kind=PassKind.SERVERS, object_id=vm) for vm in ("v1", "v2", stranger)])
    cloud.asked.clear()
    read_cloud(cloud, PassKind.CHANGES)
    assert places() == {"v1": "node1", "v3": "node2", "v4": "node1", "v5": "node2"}
    assert set(cloud.asked[:3]) == {"/servers/v1", "/servers/v2", f"/servers/{stranger}"}
    assert not FeedHint.objects.exists()
    assert set(DeletedVM.objects.values_list("openstack_id", flat=True)) == {"v2"}


def test_vms_that_nova_hides_from_us_are_not_gone(cloud: LiveCloud) -> None:
    """As from whoever is no administrator: those of other projects are listed, and 404."""
    for number in range(6, 9):
        cloud.boot(f"v{number}", 1, tenant_id="p2")
    read_cloud(cloud)
    cloud.lost = {f"/servers/v{number}" for number in range(6, 9)}
    hidden = {f"v{number}" for number in range(6, 9)}
    for vm in hidden:
        note_hints([Hint(kind=PassKind.SERVERS, object_id=vm)])
    read_cloud(cloud, PassKind.CHANGES)
    assert hidden <= places().keys()

    kept = list(cloud.servers)
    cloud.servers[:] = [server for server in kept if server["id"] not in {"v6", "v1"}]
    read_cloud(cloud, PassKind.SERVERS)
    assert {"v6", "v1"} <= places().keys()
    cloud.servers[:] = kept
    cloud.delete("v6")
    read_cloud(cloud, PassKind.CHANGES)
    assert places().keys() >= {"v1", "v7"}
    assert "v6" not in places()


def test_a_hint_that_comes_while_it_is_looked_at_is_looked_at_again(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    hint = Hint(kind=PassKind.SERVERS, object_id="v1")
    note_hints([hint])
    cloud.meanwhile["/servers/v1"] = in_a_thread(lambda: note_hints([hint]))
    read_cloud(cloud, PassKind.CHANGES)
    assert FeedHint.objects.count() == 1


def test_hints_of_other_kinds_wait_for_a_pass_over_them(cloud: LiveCloud) -> None:
    read_cloud(cloud)
    note_hints([Hint(kind=PassKind.HOSTS), Hint(kind=PassKind.FLAVORS)])
    read_cloud(cloud, PassKind.CHANGES)
    assert hinted_kinds() == [PassKind.FLAVORS, PassKind.HOSTS]
    read_cloud(cloud, PassKind.HOSTS)
    assert hinted_kinds() == [PassKind.FLAVORS]


def test_hints_are_bounded(cloud: LiveCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "MOST_HINTS", 3)
    for number in range(9):
        note_hints([Hint(kind=PassKind.SERVERS, object_id=f"v{number}")])
    assert FeedHint.objects.count() == 3
