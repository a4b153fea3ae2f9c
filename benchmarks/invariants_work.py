"""One process of ``bench invariants``: works on the region until its time is over, or is killed.

What others forbid or hold is no defect (409, 503, busy); any other answer ends the process with an
error. How often it did what is written into a file after each move, for whoever counts.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
os.environ["HEADROOM_LOG_LEVEL"] = "ERROR"

import django

django.setup()

import orjson  # noqa: E402 - models need the setup
from django.conf import settings  # noqa: E402 - likewise
from django.db import connection  # noqa: E402 - likewise
from django.test import Client  # noqa: E402 - likewise
from django.test.utils import override_settings  # noqa: E402 - likewise

from benchmarks.bench_region import TOKEN  # noqa: E402 - likewise
from benchmarks.invariants_checks import look  # noqa: E402 - likewise
from benchmarks.placement_claims import served_from_claims  # noqa: E402 - likewise
from capacity.figures.group_capacity import refresh_group_capacity  # noqa: E402 - likewise
from capacity.guard.oversubscription import check_oversubscription  # noqa: E402 - likewise
from capacity.nova.in_flight import after_vm_changes, end_expired  # noqa: E402 - likewise
from capacity.nova.pipelines import ensure_shipped_pipelines  # noqa: E402 - likewise
from capacity.nova.scheduling import run_scheduling  # noqa: E402 - likewise
from commitments.models import Commitment  # noqa: E402 - likewise
from commitments.services.compaction import compact_zone  # noqa: E402 - likewise
from commitments.services.repair import repair_due_commitments  # noqa: E402 - likewise
from commitments.services.usage import reconcile_all_usage  # noqa: E402 - likewise
from commitments.services.verification import verify_slots  # noqa: E402 - likewise
from failover.models import FailoverZone  # noqa: E402 - likewise
from failover.selectors.zone import failover_zones  # noqa: E402 - likewise
from failover.services.evacuation import plan_evacuations, settle_evacuations  # noqa: E402 - likewise
from failover.services.loop import reconcile_zone  # noqa: E402 - likewise
from failover.services.replanning import replan_due  # noqa: E402 - likewise
from failover.services.validation import validate_zone  # noqa: E402 - likewise
from hosts.models import Flavor, Host  # noqa: E402 - likewise
from hosts.region.run import ImportOptions  # noqa: E402 - likewise
from hosts.services.region_import import import_region  # noqa: E402 - likewise
from journal.actors import Actor  # noqa: E402 - likewise
from journal.conf import AccessToken  # noqa: E402 - likewise
from journal.errors import HeadroomError  # noqa: E402 - likewise
from placement.services.hosts import reconcile_host_providers  # noqa: E402 - likewise
from placement.services.upkeep import fold_project_usage, prune_changes  # noqa: E402 - likewise
from scheduling.intents import CallOptions, Intent  # noqa: E402 - likewise
from scheduling.request import PlacementRequest  # noqa: E402 - likewise
from scheduling.resources import MIB  # noqa: E402 - likewise
from tests.placement.client import PlacementClient, consumer_body  # noqa: E402 - likewise

ACTOR: Final = Actor(name="bench")
GROUP: Final = "general_v1"
RESOURCE: Final = f"hw_version_{GROUP}_ram"
PIPELINE: Final = "kvm-general-purpose-load-balancing"
FINE: Final = frozenset({200, 204, 404, 409, 503})
#: Whoever holds what a migration left is told by this user.
MOVER: Final = "mover"
LARGEST_GIB: Final = 256
PASSES: Final = 12

# A VM with what it holds and where; by the nearest number, as rows come and go.
ANY_VM: Final = """
SELECT consumer.uuid::text, consumer.generation, project.external_id, owner.external_id,
       provider.uuid::text, json_object_agg(class.name, held.used)
  FROM (SELECT * FROM placement_consumer
         WHERE id >= (SELECT min(id) + (max(id) - min(id)) * %s FROM placement_consumer)
         ORDER BY id LIMIT 1) consumer
  JOIN placement_project project ON project.id = consumer.project_id
  JOIN placement_user owner ON owner.id = consumer.user_id
  JOIN placement_allocation held ON held.consumer_id = consumer.id
  JOIN placement_provider provider ON provider.id = held.provider_id
  JOIN placement_resource_class class ON class.id = held.resource_class_id
 GROUP BY 1, 2, 3, 4, 5
"""
LISTED: Final = """
SELECT consumer.uuid::text, project.external_id, owner.external_id, min(host.name), min(host.zone)
  FROM placement_consumer consumer
  JOIN placement_project project ON project.id = consumer.project_id
  JOIN placement_user owner ON owner.id = consumer.user_id
  JOIN placement_allocation held ON held.consumer_id = consumer.id
  JOIN placement_provider provider ON provider.id = held.provider_id
  JOIN hosts_host host ON host.openstack_id = provider.uuid::text
 WHERE owner.external_id <> 'mover'
 GROUP BY 1, 2, 3
"""


class UnexpectedAnswerError(RuntimeError):
    """A request was answered as it must not be."""


@dataclass(slots=True, kw_only=True)
class Worker:
    """What a process has and did.

    Attributes:
        region: File of the region as it was imported first.
        done: Outcome to how often.
    """

    draw: Random
    region: Path
    done: Counter[str] = field(default_factory=Counter)

    def sent(self, answer: Any, what: str) -> bool:  # Any: an answer of either client
        """Count an answer; return whether it was granted."""
        status = int(getattr(answer, "status", 0) or answer.status_code)
        if status not in FINE:
            raise UnexpectedAnswerError(f"{what}: {status} {answer.content[:500]!r}")
        self.done[f"{what} {status}"] += 1
        return status in {200, 204}

    @contextmanager
    def busy_is_fine(self, what: str) -> Iterator[None]:
        """Others may be in the way."""
        try:
            yield
        except HeadroomError as error:
            self.done[f"{what} {error.code}"] += 1
        else:
            self.done[what] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VM:
    """What holds allocations on one provider."""

    uuid: str
    generation: int
    project_id: str
    user_id: str
    provider: str
    amounts: dict[str, int]

    def body(self, provider: str | None, generation: int | None, user_id: str = "") -> object:
        """Return the body that has it hold its amounts on a provider, or nothing."""
        held = {provider: self.amounts} if provider else {}
        return consumer_body(
            held,
            generation=generation,
            project_id=self.project_id,
            user_id=user_id or self.user_id,
        )


def claim(worker: Worker) -> None:
    """Do what Nova does with one VM."""
    client = PlacementClient(version="1.28", X_Roles="admin,service")
    chosen = worker.draw.choices(
        (boot, boot_where_told, move, delete, claim_too_much), (4, 2, 5, 3, 1)
    )
    chosen[0](worker, client)


def any_vm(worker: Worker) -> VM | None:
    """Return a VM that holds something on one host and is not under way."""
    with connection.cursor() as cursor:
        cursor.execute(ANY_VM, [worker.draw.random()])
        rows = cursor.fetchall()
    if len(rows) != 1 or rows[0][3] == MOVER:
        return None
    uuid, generation, project, user, provider, amounts = rows[0]
    return VM(
        uuid=uuid,
        generation=generation,
        project_id=project,
        user_id=user,
        provider=provider,
        amounts=dict(amounts),
    )


def places(worker: Worker, client: PlacementClient, amounts: dict[str, int]) -> list[str]:
    """Return providers that Placement would claim from."""
    asked = ",".join(f"{name}:{amount}" for name, amount in amounts.items())
    answer = client.get(f"/allocation_candidates?resources={asked}&limit=20", version="1.39")
    if not worker.sent(answer, "candidates"):
        return []
    return [next(iter(one["allocations"])) for one in answer.json["allocation_requests"]]


def any_flavor(worker: Worker) -> Flavor:
    """Return a flavor of the general group."""
    known = list(Flavor.objects.filter(extra_specs__contains={"quota:hw_version": GROUP}))
    return worker.draw.choice(sorted(known, key=lambda one: one.name))


def amounts_of(flavor: Flavor) -> dict[str, int]:
    """Return what Nova claims for a VM of a flavor."""
    return {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_bytes // MIB}


def new_vm(worker: Worker, flavor: Flavor, provider: str) -> VM:
    """Return a VM that does not exist yet; its user tells the flavor."""
    return VM(
        uuid=str(UUID(int=worker.draw.getrandbits(128), version=4)),
        generation=0,
        project_id=any_project(worker),
        user_id=f"flavor {flavor.name}",
        provider=provider,
        amounts=amounts_of(flavor),
    )


def any_project(worker: Worker) -> str:
    """Return a project, oftener than not one with commitments."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT project_id FROM commitments_commitment WHERE flavor_group_name = %s "
            "OFFSET floor(%s * (SELECT count(*) FROM commitments_commitment "
            "WHERE flavor_group_name = %s)) LIMIT 1",
            [GROUP, worker.draw.random(), GROUP],
        )
        row = cursor.fetchone()
    return str(row[0]) if row else "project-0"


def boot(worker: Worker, client: PlacementClient) -> None:
    """Claim one of the places that Placement proposes."""
    flavor = any_flavor(worker)
    found = places(worker, client, amounts_of(flavor))
    if found:
        vm = new_vm(worker, flavor, worker.draw.choice(found))
        worker.sent(client.put(f"/allocations/{vm.uuid}", vm.body(vm.provider, None)), "boot")


def boot_where_told(worker: Worker, client: PlacementClient) -> None:
    """Ask the scheduler as Nova does, which holds room, and claim its best host."""
    flavor = any_flavor(worker)
    vm = new_vm(worker, flavor, "")
    request = PlacementRequest(
        request_key=vm.uuid,
        memory_bytes=flavor.memory_bytes,
        vcpus=flavor.vcpus,
        project_id=vm.project_id,
        flavor_name=flavor.name,
        intent=Intent.CREATE,
        extra_specs=flavor.extra_specs,
    )
    hosts: tuple[str, ...] = ()
    with worker.busy_is_fine("schedule"):
        hosts = run_scheduling(
            request,
            pipeline_name=PIPELINE,
            options=CallOptions(max_candidates=2),
            actor=ACTOR,
            request_id="bench",
        ).host_names
    if hosts:
        provider = Host.objects.values_list("openstack_id", flat=True).get(name=hosts[0])
        body = vm.body(provider, None)
        worker.sent(client.put(f"/allocations/{vm.uuid}", body), "boot where told")


def delete(worker: Worker, client: PlacementClient) -> None:
    """Delete a VM."""
    vm = any_vm(worker)
    if vm is not None:
        worker.sent(client.delete(f"/allocations/{vm.uuid}"), "delete")


def move(worker: Worker, client: PlacementClient) -> None:
    """Let a migration hold the old place, claim the new one, and give back one of both."""
    vm = any_vm(worker)
    if vm is None:
        return
    migration = str(uuid5(NAMESPACE_OID, f"migration of {vm.uuid}"))
    handed = {
        vm.uuid: vm.body(None, vm.generation),
        migration: vm.body(vm.provider, None, MOVER),
    }
    if not worker.sent(client.post("/allocations", handed), "hand over"):
        return
    found = [one for one in places(worker, client, vm.amounts) if one != vm.provider]
    new = worker.draw.choice(found) if found else None
    has_moved = new is not None and worker.sent(
        client.put(f"/allocations/{vm.uuid}", vm.body(new, None)), "claim a new place"
    )
    if has_moved and worker.draw.random() < 0.8:  # noqa: PLR2004 - most moves succeed
        worker.sent(client.delete(f"/allocations/{migration}"), "confirm")
        return
    if has_moved:
        worker.sent(client.delete(f"/allocations/{vm.uuid}"), "leave the new place")
    back = {vm.uuid: vm.body(vm.provider, None), migration: vm.body(None, 1, MOVER)}
    worker.sent(client.post("/allocations", back), "revert")


def claim_too_much(worker: Worker, client: PlacementClient) -> None:
    """Ask for more than any host has."""
    vm = any_vm(worker)
    if vm is None:
        return
    body = consumer_body(
        {vm.provider: {"MEMORY_MB": 1 << 40, "VCPU": 1}}, generation=None, project_id=vm.project_id
    )
    if worker.sent(client.put(f"/allocations/{uuid4()}", body), "claim too much"):
        raise UnexpectedAnswerError("more was claimed than any host has")


def change(worker: Worker) -> None:
    """Send a batch as Limes does: a new commitment, or one of ours larger, smaller or ended."""
    token = AccessToken.model_validate(
        {"token": TOKEN, "name": "bench", "roles": ["cloud_resource_admin"]}
    )
    chosen = settings.HEADROOM.model_copy(update={"tokens": (token,), "auth": "token"})
    with override_settings(HEADROOM=chosen):
        client = Client(raise_request_exception=False, headers={"X-Auth-Token": TOKEN})
        version = orjson.loads(client.get("/commitments/v1/info").content)["version"]
        answer = client.post(
            "/commitments/v1/change-commitments",
            orjson.dumps(_batch(worker, version)),
            content_type="application/json",
        )
    refused = answer.status_code == 200 and answer.content != b"{}"  # noqa: PLR2004 - HTTP OK
    worker.sent(answer, "refused change" if refused else "change")


def _batch(worker: Worker, version: int) -> dict[str, object]:
    draw = worker.draw
    ours = list(
        Commitment.objects.filter(
            flavor_group_name=GROUP, resource_type="memory", state="confirmed"
        ).order_by("-id")[:50]
    )
    old = draw.choice(ours) if ours and draw.random() < 0.6 else None  # noqa: PLR2004 - oftener
    amount = LARGEST_GIB * draw.randint(1, 10)
    zones = failover_zones()
    zone, project = (old.zone, old.project_id) if old else (draw.choice(zones), any_project(worker))
    new_status = "confirmed" if old is None or draw.random() < 0.6 else None  # noqa: PLR2004 - likewise
    told = {
        "uuid": old.commitment_uuid if old else str(UUID(int=draw.getrandbits(128), version=4)),
        "oldStatus": "confirmed" if old else None,
        "newStatus": new_status,
        "amount": old.requested_amount // (1 << 30) if old else amount,
        "expiresAt": (datetime.now(tz=UTC) + timedelta(days=365)).isoformat(),
    }
    before, after = (told["amount"] if status else 0 for status in (told["oldStatus"], new_status))
    return {
        "az": zone,
        "dryRun": draw.random() < 0.1,  # noqa: PLR2004 - now and then
        "infoVersion": version,
        "byProject": {
            project: {
                "byResource": {
                    RESOURCE: {
                        "totalConfirmedBefore": before,
                        "totalConfirmedAfter": after,
                        "totalGuaranteedBefore": 0,
                        "totalGuaranteedAfter": 0,
                        "commitments": [told],
                    }
                }
            }
        },
    }


def cover(worker: Worker) -> None:
    """Let a pass of failover go over a zone, with all that is done between passes."""
    zone = worker.draw.choice(failover_zones())
    _host_fails_or_returns(worker)
    FailoverZone.objects.filter(zone=zone).update(confirmed_at=datetime.now(tz=UTC))
    with worker.busy_is_fine("failover pass"):
        reconcile_zone(zone, request_id="bench")
    with worker.busy_is_fine("validation"):
        validate_zone(zone, request_id="bench")
    with worker.busy_is_fine("replanning"):
        replan_due(request_id="bench")
    with worker.busy_is_fine("evacuation"):
        now = datetime.now(tz=UTC)
        settle_evacuations(actor=ACTOR, request_id="bench", now=now)
        plan_evacuations(actor=ACTOR, request_id="bench", now=now)


def _host_fails_or_returns(worker: Worker) -> None:
    down = list(Host.objects.filter(state="down").values_list("pk", flat=True)[:20])
    if down and worker.draw.random() < 0.5:  # noqa: PLR2004 - in turn, about
        Host.objects.filter(pk=worker.draw.choice(down)).update(state="up")
        return
    whole = Host.objects.filter(state="up").count()
    chosen = Host.objects.filter(state="up").order_by("pk")[int(worker.draw.random() * whole)]
    Host.objects.filter(pk=chosen.pk).update(state="down")


def upkeep(worker: Worker) -> None:
    """Run one of the tasks that work on slots, rooms and usage."""
    now = datetime.now(tz=UTC)
    tasks: dict[str, Callable[[], object]] = {
        "verify slots": lambda: verify_slots(actor=ACTOR, request_id="bench"),
        "repair": lambda: repair_due_commitments(actor=ACTOR, request_id="bench"),
        "compact": lambda: compact_zone(
            worker.draw.choice(failover_zones()), actor=ACTOR, request_id="bench", now=now
        ),
        "end of flights": lambda: (after_vm_changes(), end_expired()),
        "capacity": refresh_group_capacity,
        "usage": lambda: reconcile_all_usage(actor=ACTOR, request_id="bench"),
        "fold usage": lambda: (fold_project_usage(), prune_changes()),
        "guard": lambda: check_oversubscription(actor=ACTOR, request_id="bench"),
        "providers": reconcile_host_providers,
    }
    name = worker.draw.choice(sorted(tasks))
    with worker.busy_is_fine(name):
        tasks[name]()


def take_list(worker: Worker) -> None:
    """Read VMs as they are claimed now, and import them as a list of Nova's."""
    taken_at = datetime.now(tz=UTC)
    with connection.cursor() as cursor:
        cursor.execute(LISTED)
        found = cursor.fetchall()
    servers = {
        one["id"]: one for one in orjson.loads(worker.region.read_bytes())["compute"]["servers"]
    }
    by_flavor = {one["flavor"]["original_name"]: one for one in servers.values()}
    listed = []
    for uuid, project, user, host, zone in found:
        known = servers.get(uuid) or by_flavor.get(user.removeprefix("flavor "))
        if known is not None:
            listed.append(
                known
                | {
                    "id": uuid,
                    "tenant_id": project,
                    "OS-EXT-AZ:availability_zone": zone,
                    "OS-EXT-SRV-ATTR:host": host,
                    "OS-EXT-SRV-ATTR:hypervisor_hostname": host,
                }
            )
    held = {row[0] for row in found}
    listed += [
        one for uuid, one in servers.items() if uuid not in held and not one["OS-EXT-SRV-ATTR:host"]
    ]
    path = worker.region.with_name(f"list-{os.getpid()}.json")
    path.write_bytes(
        orjson.dumps({"about": {"taken_at": taken_at.isoformat()}, "compute": {"servers": listed}})
    )
    with worker.busy_is_fine("import"):
        options = ImportOptions(prune=True, accepts_shrink=True)
        import_region(files=[path], actor=ACTOR, request_id="bench", options=options)


def settle(_: Worker) -> None:
    """See which VMs are in slots, and make good what is short, before anything is checked."""
    ensure_shipped_pipelines(request_id="bench")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE hosts_region SET taken_at = %s", [datetime.now(tz=UTC).isoformat()])
    for _number in range(2):
        verify_slots(actor=ACTOR, request_id="bench", is_full=True, believes_list=True)
        repair_due_commitments(actor=ACTOR, request_id="bench")


def finish(worker: Worker) -> None:
    """Let failover do all that it can."""
    Host.objects.filter(state="down").update(state="up")
    for zone in failover_zones():
        for _ in range(PASSES):
            FailoverZone.objects.filter(zone=zone).update(confirmed_at=datetime.now(tz=UTC))
            run = reconcile_zone(zone, request_id="bench")
            worker.done["failover pass"] += 1
            if not run.hit_limit and not run.brake:
                break


ROLES: Final[dict[str, Callable[[Worker], None]]] = {
    "claim": claim,
    "change": change,
    "cover": cover,
    "upkeep": upkeep,
    "list": take_list,
}
STEPS: Final[dict[str, Callable[[Worker], None]]] = {"settle": settle, "finish": finish}


def main() -> None:
    """Do what the command line says: a step, a look, or moves until the time is over."""
    name, *arguments = sys.argv[1:]
    with served_from_claims():
        scheduler = settings.HEADROOM.scheduler.model_copy(
            update={"committed_resource_tracking": True}
        )
        with override_settings(
            HEADROOM=settings.HEADROOM.model_copy(update={"scheduler": scheduler})
        ):
            if name == "look":
                found = look(is_settled="settled" in arguments)
                json.dump([asdict(one) for one in found], sys.stdout)
            elif name in STEPS:
                STEPS[name](Worker(draw=Random(name), region=Path()))  # noqa: S311 - no secret
            else:
                _work(ROLES[name], *arguments)


def _work(role: Callable[[Worker], None], seed: str, region: str, told: str, seconds: str) -> None:
    """Make moves until the time is over, one at least."""
    worker = Worker(draw=Random(seed), region=Path(region))  # noqa: S311 - no secret
    ends = time.monotonic() + float(seconds)
    while True:
        role(worker)
        part = Path(f"{told}.part")
        part.write_text(json.dumps(worker.done), encoding="utf-8")
        part.replace(told)
        if time.monotonic() >= ends:
            return


if __name__ == "__main__":
    main()
