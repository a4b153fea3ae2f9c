from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from commitments.models import Commitment, InstanceAssignment
from commitments.services.usage import reconcile_all_usage
from commitments.tasks import reconcile_changed_usage, reconcile_usage
from journal.actors import task_actor
from tests.commitments.change_requests import change, decide_ram
from tests.factories import make_group, make_host, make_vm

pytestmark = pytest.mark.django_db(transaction=True)

A = "aaaaaaaa-0000-4000-8000-000000000001"


@pytest.fixture
def covered_vm() -> None:
    make_group("hana_1", flavors=[("small", 1024, 4)])
    host = make_host("h1", zone="az-a", memory_gib=10, vcpus=40)
    make_vm(host=host, memory_gib=1, vcpus=4, project_id="alpha")
    now = timezone.now()
    decide_ram("alpha", change(A, 2, expires_at=now + timedelta(days=1)), now=now)


def renew(*, only_changed: bool) -> int:
    return reconcile_all_usage(
        actor=task_actor("test"), request_id="usage-1", only_changed=only_changed
    )


@pytest.mark.usefixtures("covered_vm")
class TestChangedUsage:
    def test_accepted_commitment_covers_its_vms_at_once(self) -> None:
        assert reconcile_changed_usage() == {"projects": 1}
        assert InstanceAssignment.objects.get().commitment.commitment_uuid == A

    def test_project_without_changes_is_left_alone(self) -> None:
        assert renew(only_changed=True) == 1
        assert renew(only_changed=True) == 0
        assert renew(only_changed=False) == 1
        assert reconcile_usage() == {"projects": 1}

    def test_ended_commitment_gives_its_vms_back(self) -> None:
        renew(only_changed=True)
        decide_ram("alpha", change(A, 2, "superseded", old="confirmed"))
        assert renew(only_changed=True) == 1
        assert not InstanceAssignment.objects.exists()
        assert Commitment.objects.get().used_memory_bytes == 0
        assert renew(only_changed=True) == 0
