"""Living through the demo's world, a wish at a time, by the APIs and writers of the real one."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import uuid4

import structlog

from core.chunks import in_chunks
from hosts.demo.calls import Calls
from hosts.demo.cloud import DemoCloud
from hosts.domain.demo_world import (
    OF_VMS,
    Act,
    ImpossibleError,
    Wish,
    World,
    next_wish,
    wish_of,
)
from hosts.feed.lists import PassKind
from hosts.feed.passes import run_pass
from journal.actors import Actor
from journal.clock import database_now

log = structlog.get_logger(__name__)

ACTOR: Final = Actor(name="demo region")
INTENTS: Final[Mapping[Act, str]] = {
    Act.MIGRATE: "live_migrate",
    Act.RESIZE: "resize",
    Act.EVACUATE: "evacuate",
}
OPENING: Final = (Act.OVERASK, Act.ARRIVE, Act.COMMIT, Act.FAIL_HOST)
"""What happens first, so that nobody waits for chance to see a refusal or an evacuation."""
MOST_CANDIDATES: Final = 120
FIRST_CLAIMS_TOGETHER: Final = 50
BATCHES_A_STEP: Final = 12


class Driver:
    """Asks, does what was answered, and tells what Nova would say of it."""

    def __init__(self, *, world: World, cloud: DemoCloud, calls: Calls, seed: int) -> None:
        self.world, self.cloud, self.calls = world, cloud, calls
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(seed)  # noqa: S311 - nothing secret
        self._unclaimed = in_chunks(sorted(world.vms), FIRST_CLAIMS_TOGETHER)
        self._unreported = [
            uuid
            for uuid, provider in cloud.providers.items()
            if provider["inventories"] and provider["parent_provider_uuid"] is None
        ]

    def report_hosts(self) -> int:
        """Say what hosts have, as nova-compute does.

        Returns:
            How many have no provider yet, which a worker makes: say it again.
        """
        self._unreported = [uuid for uuid in self._unreported if not self._report(uuid)]
        return len(self._unreported)

    def begin(self) -> None:
        """Have all hosts and VMs listed once."""
        self._listed(PassKind.HOSTS)
        self._listed(PassKind.SERVERS)

    def _report(self, uuid: str) -> bool:
        provider = self.cloud.providers[uuid]
        inventories = provider["inventories"]["inventories"]
        traits = (provider["traits"] or {}).get("traits", ())
        return self.calls.report_provider(uuid, inventories, traits)

    def open(self) -> list[str]:
        """Live through one wish of each kind of OPENING that can be; return what came of them."""
        wishes = (wish_of(self.world, act, self._rng, lambda: str(uuid4())) for act in OPENING)
        return [self._tried(wish) for wish in wishes if wish is not None]

    def step(self) -> str:
        """Live through one wish; return what came of it, in a word or two."""
        for vms in itertools.islice(self._unclaimed, BATCHES_A_STEP):
            self.counts["first claims"] += self._claim_first(vms)
        wish = next_wish(self.world, self._rng, lambda: str(uuid4()))
        return "nothing can happen" if wish is None else self._tried(wish)

    def _tried(self, wish: Wish) -> str:
        try:
            outcome = self._live(wish)
        except ImpossibleError as error:
            outcome = f"{wish.act}: impossible ({error})"
        self.counts[outcome.partition(" (")[0]] += 1
        log.info("demo_region_step", outcome=outcome)
        return outcome

    def _live(self, wish: Wish) -> str:
        if wish.act in OF_VMS:
            return self._place(wish)
        if wish.act is Act.DEPART:
            return self._depart(wish)
        if wish.commitment is not None:
            return self._promise(wish)
        self.world.apply(wish)
        self.cloud.show_host(self.world.hosts[wish.host])
        self._listed(PassKind.HOSTS)
        return f"{wish.act}: done"

    def _place(self, wish: Wish) -> str:
        vm = wish.vm
        if vm is None:
            raise ImpossibleError("no VM is named")
        zone = self.world.hosts[vm.host].zone
        known = self.world.vms.get(vm.uuid)
        names = [
            name
            for name, host in sorted(self.world.hosts.items())
            if host.zone == zone and self.world.takes(name, vm)
            and (known is None or name != known.host or wish.act is Act.RESIZE)
        ]  # fmt: skip
        names = self._rng.sample(names, min(len(names), MOST_CANDIDATES))
        flavor = self.cloud.flavors[vm.size.flavor]
        intent = INTENTS.get(wish.act, "")
        chosen = self.calls.choose_hosts(vm, flavor, intent=intent, zone=zone, hosts=names)
        for name in chosen:
            provider = self.cloud.hypervisors[name]["id"]
            if self.calls.claim(vm, provider, disk_gib=flavor["disk"]):
                self.world.apply(wish, host=name)
                self.cloud.show_vm(replace(vm, host=name), zone=zone, now=database_now())
                self._listed(PassKind.CHANGES)
                return f"{wish.act}: done"
        return f"{wish.act}: no host"

    def _depart(self, wish: Wish) -> str:
        self.world.apply(wish)
        if wish.vm is not None:
            self.calls.give_back(wish.vm.uuid)
            self.cloud.hide_vm(wish.vm.uuid, now=database_now())
        self._listed(PassKind.CHANGES)
        return f"{wish.act}: done"

    def _promise(self, wish: Wish) -> str:
        one = wish.commitment
        if one is None:
            raise ImpossibleError("no commitment is named")
        known = self.world.commitments.get(one.uuid)
        reason = self.calls.change(
            one,
            before=known.amount_units if known is not None else None,
            after=None if wish.act is Act.UNCOMMIT else one.amount_units,
        )
        if reason is None:
            return f"{wish.act}: not served"
        if reason:
            return f"{wish.act}: refused"
        self.world.apply(wish)
        return f"{wish.act}: done"

    def _listed(self, kind: PassKind) -> None:
        run_pass(kind, cloud=self.cloud, actor=ACTOR, request_id="demo-region")
        if kind is not PassKind.HOSTS:
            self.cloud.forget_changes()

    def _claim_first(self, uuids: Sequence[str]) -> int:
        """Claim for VMs that were there before, as Nova did when it placed them."""
        return self.calls.claim_first(
            [
                (
                    vm,
                    self.cloud.hypervisors[vm.host]["id"],
                    self.cloud.flavors[vm.size.flavor]["disk"],
                )
                for uuid in uuids
                if (vm := self.world.vms.get(uuid)) is not None
            ]
        )
