"""The hosts, projects and names of a generated region."""

from __future__ import annotations

import random
import uuid
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from hosts.region.generator.catalog import (
    DISABLED_REASONS,
    DOMAIN_NAMES,
    GENERAL,
    GROUPS,
    HARDWARE,
    IMAGE_NAMES,
    PROJECT_PURPOSES,
    FlavorPlan,
    Hardware,
)

ZONE_LETTERS: Final = "abcdef"
# Multiples of the golden ratio's fraction, in thousandths, spread generations evenly over hosts.
GOLDEN_STEP: Final = 618
MANY_HOSTS: Final = 1500
HOSTS_PER_PROJECT: Final = 10
MOST_PROJECTS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorOptions:
    """What to generate.

    Attributes:
        hosts: Number of hosts.
        vms: Number of VMs; fewer when they would not leave room free.
        commitments: Number of commitments.
        seed: The same seed gives the same bytes.
        taken_at: Unix seconds that the region pretends to be read at.
    """

    hosts: int
    vms: int
    commitments: int
    seed: int
    taken_at: int


@dataclass(slots=True, kw_only=True)
class HostPlan:
    """A host and what is left of it.

    ``project_id`` is set for hosts that an aggregate reserves for one project.
    """

    number: int
    name: str
    uuid: str
    service_id: str
    zone: str
    hardware: Hardware
    state: str = "up"
    status: str = "enabled"
    disabled_reason: str | None = None
    project_id: str = ""
    free_gib: int = 0
    free_vcpus: int = 0
    free_vgpus: int = 0

    @property
    def takes_vms(self) -> bool:
        """Whether new VMs of any project may be placed here."""
        return self.state == "up" and self.status == "enabled" and not self.project_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectPlan:
    """A project and its domain."""

    id: str
    name: str
    domain_id: str


@dataclass(slots=True, kw_only=True)
class RegionPlan:
    """Everything that the sections are written from; ``rng`` is drawn from in file order."""

    options: GeneratorOptions
    rng: random.Random
    zones: tuple[str, ...]
    domains: tuple[tuple[str, str], ...]
    projects: tuple[ProjectPlan, ...]
    flavor_ids: dict[str, str]
    image_ids: tuple[str, ...]
    user_id: str
    aggregate_ids: dict[str, str]
    hosts: list[HostPlan]
    used: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)

    def new_uuid(self) -> str:
        """Return the next uuid of the sequence."""
        return new_uuid(self.rng)

    def count_use(self, project_id: str, zone: str, flavor: FlavorPlan) -> None:
        """Add a VM to what its project uses: GiB, vCPUs, VMs by zone and group."""
        used = self.used.setdefault((project_id, zone, flavor.group), [0, 0, 0])
        used[0] += flavor.memory_gib
        used[1] += flavor.vcpus
        used[2] += 1


def new_uuid(rng: random.Random) -> str:
    """Return a random uuid (version 4) from a seeded generator."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def plan_region(options: GeneratorOptions) -> RegionPlan:
    """Lay out a region: zones, hosts by generation, domains, projects, aggregates."""
    rng = random.Random(options.seed)  # noqa: S311 - a reproducible sequence is the point
    zone_count = 4 if options.hosts >= MANY_HOSTS else 3
    zones = tuple(f"az-{letter}" for letter in ZONE_LETTERS[:zone_count])
    domains = tuple((new_uuid(rng).replace("-", ""), name) for name in DOMAIN_NAMES)
    project_count = min(MOST_PROJECTS, max(len(domains), options.hosts // HOSTS_PER_PROJECT))
    projects = tuple(_project(rng, index, domains) for index in range(project_count))
    plan = RegionPlan(
        options=options,
        rng=rng,
        zones=zones,
        domains=domains,
        projects=projects,
        flavor_ids={flavor.name: new_uuid(rng) for group in GROUPS for flavor in group.flavors},
        image_ids=tuple(new_uuid(rng) for _ in IMAGE_NAMES),
        user_id=new_uuid(rng).replace("-", ""),
        aggregate_ids={},
        hosts=_hosts(rng, options.hosts, zones),
    )
    _reserve_for_project(plan)
    shapes = sorted({host.hardware.shape for host in plan.hosts})
    for name in (*zones, *(f"shape-{shape}" for shape in shapes), "dedicated"):
        plan.aggregate_ids[name] = new_uuid(rng)
    return plan


def _project(rng: random.Random, index: int, domains: tuple[tuple[str, str], ...]) -> ProjectPlan:
    domain_id, domain_name = domains[index % len(domains)]
    purpose_index = index // len(domains)
    purpose = PROJECT_PURPOSES[purpose_index % len(PROJECT_PURPOSES)]
    series = purpose_index // len(PROJECT_PURPOSES)
    name = f"{domain_name}-{purpose}" + (f"-{series + 1}" if series else "")
    return ProjectPlan(id=new_uuid(rng).replace("-", ""), name=name, domain_id=domain_id)


def _hosts(rng: random.Random, count: int, zones: tuple[str, ...]) -> list[HostPlan]:
    bounds = list(accumulate(hardware.share for hardware in HARDWARE))
    hosts = []
    for index in range(count):
        position = (index // len(zones)) * GOLDEN_STEP % 1000
        hardware = HARDWARE[bisect_right(bounds, position * bounds[-1] // 1000)]
        zone = zones[index % len(zones)]
        host = HostPlan(
            number=index + 1,
            name=f"node{index + 1:05d}-{zone}",
            uuid=new_uuid(rng),
            service_id=new_uuid(rng),
            zone=zone,
            hardware=hardware,
            free_gib=hardware.usable_gib,
            free_vcpus=hardware.usable_vcpus,
        )
        if index % 201 == 77:  # noqa: PLR2004 - one in 200 is down, all of them in one of three zones
            host.state = "down"
        elif index % 70 == 33:  # noqa: PLR2004 - one in 70 is in maintenance
            host.status = "disabled"
            host.disabled_reason = DISABLED_REASONS[index % len(DISABLED_REASONS)]
        hosts.append(host)
    return hosts


def _reserve_for_project(plan: RegionPlan) -> None:
    """Give one in a hundred general hosts to one project alone."""
    owner = plan.projects[0].id
    for host in plan.hosts:
        if host.number % 100 == 50 and host.hardware.shape == GENERAL:  # noqa: PLR2004 - one in 100
            host.project_id = owner
