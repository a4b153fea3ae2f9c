"""What the demo asks of a served Headroom: the APIs that Nova, nova-compute and Limes call."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from hosts.domain.demo_world import DemoCommitment, DemoVM

Json = Any  # bodies keep the APIs' own shapes

TIMEOUT_SECONDS: Final = 20.0
PLACEMENT_VERSION: Final = "placement 1.36"
ALLOCATIONS: Final = "/placement/allocations"
TERM_ENDS: Final = "2035-01-01T00:00:00Z"
INTENT_HINT: Final = "_nova_check_type"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Status and body; the body is None where there is none."""

    status: int
    body: Json

    @property
    def is_good(self) -> bool:
        """Whether the call succeeded."""
        return self.status < http.client.BAD_REQUEST


class Calls:
    """Calls to a Headroom on this machine that asks for no token."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._host, self._port = host, port

    def ask(self, method: str, path: str, body: Json = None) -> Answer:
        """Do one request.

        Raises:
            OSError: nobody answers in time.
            http.client.HTTPException: what answers is no HTTP.
        """
        link = http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_SECONDS)
        headers = {
            "Content-Type": "application/json",
            "OpenStack-API-Version": PLACEMENT_VERSION,
            "X-Auth-Token": "admin",
        }
        try:
            content = None if body is None else orjson.dumps(body)
            link.request(method, path, body=content, headers=headers)
            response = link.getresponse()
            text = response.read()
        finally:
            link.close()
        is_json = "json" in (response.getheader("Content-Type") or "")
        return Answer(status=response.status, body=orjson.loads(text) if is_json and text else None)

    def choose_hosts(
        self, vm: DemoVM, flavor: Json, *, intent: str, zone: str, hosts: Sequence[str]
    ) -> list[str]:
        """Return where a VM may go, best first, as Nova asks; each of them holds room for it."""
        spec = {
            "nova_object.name": "RequestSpec",
            "nova_object.data": {
                "project_id": vm.project_id,
                "user_id": "demo",
                "availability_zone": zone,
                "instance_uuid": vm.uuid,
                "num_instances": 1,
                "scheduler_hints": {INTENT_HINT: [intent]},
                "flavor": {
                    "nova_object.name": "Flavor",
                    "nova_object.data": {
                        "name": flavor["name"],
                        "flavorid": flavor["id"],
                        "memory_mb": flavor["ram"],
                        "vcpus": flavor["vcpus"],
                        "root_gb": flavor["disk"],
                        "extra_specs": flavor["extra_specs"],
                    },
                },
            },
        }
        answer = self.ask(
            "POST",
            "/scheduler/nova/external",
            {
                "spec": spec,
                "context": {"project_id": vm.project_id, "user_id": "demo"},
                "hosts": [{"host": name, "hypervisor_hostname": name} for name in hosts],
                "weights": dict.fromkeys(hosts, 0.0),
                "pipeline": "",
            },
        )
        return list(answer.body["hosts"]) if answer.is_good else []

    def report_provider(self, uuid: str, inventories: Json, traits: Sequence[str]) -> bool:
        """Say what a host has, as nova-compute does when it starts; return whether it was taken."""
        root = f"/placement/resource_providers/{uuid}"
        known = self.ask("GET", f"{root}/inventories")
        if not known.is_good:
            return False
        if known.body["inventories"]:
            return True
        generation = known.body["resource_provider_generation"]
        told = self.ask(
            "PUT",
            f"{root}/inventories",
            {"resource_provider_generation": generation, "inventories": inventories},
        )
        if not told.is_good:
            return False
        for name in traits:
            if name.startswith("CUSTOM_"):
                self.ask("PUT", f"/placement/traits/{name}")
        generation = told.body["resource_provider_generation"]
        body = {"resource_provider_generation": generation, "traits": list(traits)}
        return self.ask("PUT", f"{root}/traits", body).is_good

    def claim(self, vm: DemoVM, provider: str, *, disk_gib: int) -> bool:
        """Claim room for a VM on a provider in place of what it had; return whether it got it."""
        known = self.ask("GET", f"{ALLOCATIONS}/{vm.uuid}").body or {}
        body = _claimed(vm, provider, disk_gib, known.get("consumer_generation"))
        return self.ask("PUT", f"{ALLOCATIONS}/{vm.uuid}", body).is_good

    def claim_first(self, claims: Sequence[tuple[DemoVM, str, int]]) -> int:
        """Claim for VMs that may hold nothing yet, all at once where none does.

        Args:
            claims: Each VM with the uuid of its provider and its disk in GiB.

        Returns:
            How many got room now; who held something keeps it.
        """
        body = {vm.uuid: _claimed(vm, provider, disk, None) for vm, provider, disk in claims}
        if self.ask("POST", ALLOCATIONS, body).is_good:
            return len(claims)
        return sum(
            self.claim(vm, provider, disk_gib=disk)
            for vm, provider, disk in claims
            if not (self.ask("GET", f"{ALLOCATIONS}/{vm.uuid}").body or {}).get("allocations")
        )

    def give_back(self, uuid: str) -> bool:
        """Give back what a VM had claimed."""
        return self.ask("DELETE", f"{ALLOCATIONS}/{uuid}").is_good

    def resources(self) -> dict[str, int]:
        """Return the memory resources that Limes may ask commitments of, with GiB of a unit."""
        info = self.ask("GET", "/commitments/v1/info")
        found: Mapping[str, Json] = info.body["resources"] if info.is_good else {}
        return {
            name: int(one["unit"].removesuffix("GiB") or 1)
            for name, one in sorted(found.items())
            if name.endswith("_ram") and one["unit"].endswith("GiB")
        }

    def change(self, one: DemoCommitment, *, before: int | None, after: int | None) -> str | None:
        """Ask for a change of a commitment as Limes does; None amounts are no commitment.

        Returns:
            Why not, empty if it was accepted; None if the request itself could not be served.
        """
        info = self.ask("GET", "/commitments/v1/info")
        if not info.is_good:
            return None
        commitment = {
            "uuid": one.uuid,
            "oldStatus": None if before is None else "confirmed",
            "newStatus": None if after is None else "confirmed",
            "amount": before if after is None else after,
            "expiresAt": TERM_ENDS,
        }
        totals = {
            "totalConfirmedBefore": before or 0,
            "totalConfirmedAfter": after or 0,
            "totalGuaranteedBefore": 0,
            "totalGuaranteedAfter": 0,
        }
        answer = self.ask(
            "POST",
            "/commitments/v1/change-commitments",
            {
                "az": one.zone,
                "dryRun": False,
                "infoVersion": info.body["version"],
                "byProject": {
                    one.project_id: {
                        "byResource": {one.resource: {**totals, "commitments": [commitment]}}
                    }
                },
            },
        )
        return answer.body.get("rejectionReason", "") if answer.is_good else None


def _claimed(vm: DemoVM, provider: str, disk_gib: int, generation: int | None) -> Json:
    amounts = {"MEMORY_MB": vm.size.memory_mib, "VCPU": vm.size.vcpus, "DISK_GB": disk_gib}
    return {
        "allocations": {
            provider: {"resources": {name: count for name, count in amounts.items() if count}}
        },
        "project_id": vm.project_id,
        "user_id": "demo",
        "consumer_generation": generation,
    }
