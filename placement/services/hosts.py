"""Hosts of the region as providers (spec placement, 8.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from django.conf import settings
from django.db import IntegrityError

from core.prepared import fetch, run
from hosts.models import Host
from placement.cutover.state import refuse_while_moving
from placement.database import in_transaction
from placement.domain.capacity import MAX_INTEGER, InventoryAmounts
from placement.domain.errors import Conflict, NotFound, PlacementError
from placement.domain.host_providers import (
    HostFacts,
    HostProvider,
    HostProviderPlan,
    plan_host_providers,
    retired_inventories,
)
from placement.domain.querystring import canonical_uuid
from placement.models import InventorySource, Origin
from placement.models.names import CUSTOM_PREFIX
from placement.selectors.allocated import HOST_ROOT
from placement.services.inventories import class_ids, current_amounts, replace_all
from placement.services.locking import (
    LockedProvider,
    lock_provider,
    log_changes,
    raise_generation,
)
from placement.services.names import ensure_trait

log = structlog.get_logger(__name__)

#: What this does, for whom it is refused.
FOLLOWING: Final = "making providers follow hosts"
#: Memory and disk of Placement are in MiB and GiB.
BYTES_PER_MIB: Final = 1 << 20

PROVIDERS = """
SELECT p.uuid::text, p.name, p.zone, p.origin, p.is_retiring, p.inventory_source, p.host_traits,
       p.host_aggregates::text[],
       coalesce((SELECT json_object_agg(c.name, json_build_array(i.total, i.reserved, i.min_unit,
                                                i.max_unit, i.step_size, i.allocation_ratio))
                   FROM placement_inventory i
                   JOIN placement_resource_class c ON c.id = i.resource_class_id
                  WHERE i.provider_id = p.id), '{}')
  FROM placement_provider p
 WHERE p.origin = %s OR p.uuid = ANY (%s::uuid[]) OR p.name = ANY (%s::text[])
"""
CREATE = """
INSERT INTO placement_provider (id, uuid, name, root_id, origin, inventory_source)
SELECT n.id, %s::uuid, %s, n.id, %s, %s
  FROM (SELECT nextval(pg_get_serial_sequence('placement_provider', 'id')) AS id) n
    ON CONFLICT DO NOTHING
"""
FOLLOW = """
UPDATE placement_provider
   SET name = %s, zone = %s, origin = %s, is_retiring = false, host_traits = %s::text[],
       host_aggregates = %s::uuid[], updated_at = statement_timestamp()
 WHERE id = %s
RETURNING inventory_source
"""
OLD_FACTS = """
SELECT host_traits, host_aggregates::text[] FROM placement_provider WHERE id = %s
"""
RETIRE = "UPDATE placement_provider SET is_retiring = true WHERE id = %s"
IS_FREE = """
SELECT NOT EXISTS (SELECT FROM placement_allocation WHERE provider_id = %(id)s)
   AND NOT EXISTS (SELECT FROM placement_provider WHERE parent_id = %(id)s)
"""
FORGET = (
    "DELETE FROM placement_provider_trait WHERE provider_id = %s",
    "DELETE FROM placement_provider_aggregate WHERE provider_id = %s",
    "DELETE FROM placement_inventory WHERE provider_id = %s",
    "DELETE FROM placement_provider WHERE id = %s",
)
ADD_TRAITS = """
INSERT INTO placement_provider_trait (provider_id, trait_id)
SELECT %s, t.id FROM placement_trait t WHERE t.name = ANY (%s::text[]) ON CONFLICT DO NOTHING
"""
REMOVE_TRAITS = """
DELETE FROM placement_provider_trait l USING placement_trait t
 WHERE l.provider_id = %s AND t.id = l.trait_id AND t.name = ANY (%s::text[])
"""
ADD_AGGREGATES = """
WITH made AS (
    INSERT INTO placement_aggregate (uuid)
    SELECT n FROM unnest(%(uuids)s::uuid[]) AS n
     WHERE NOT EXISTS (SELECT FROM placement_aggregate a WHERE a.uuid = n)
     ORDER BY n ON CONFLICT DO NOTHING RETURNING id)
INSERT INTO placement_provider_aggregate (provider_id, aggregate_id)
SELECT %(id)s, id FROM made
 UNION
SELECT %(id)s, a.id FROM placement_aggregate a WHERE a.uuid = ANY (%(uuids)s::uuid[])
    ON CONFLICT DO NOTHING
"""
REMOVE_AGGREGATES = """
DELETE FROM placement_provider_aggregate l USING placement_aggregate a
 WHERE l.provider_id = %s AND a.id = l.aggregate_id AND a.uuid = ANY (%s::uuid[])
"""
NAME_AGGREGATES = """
UPDATE placement_aggregate a SET name = n.name
  FROM hosts_aggregate n WHERE n.uuid = a.uuid::text AND a.name <> n.name
"""
KNOWN_TRAITS = "SELECT name FROM placement_trait WHERE name = ANY (%s::text[])"
# What an operator ordered, or a rule says, stands, whatever the provider's client says.
ORDERED = """(CASE WHEN NOT host.is_self_described
            THEN coalesce(host.ordered_overcommit ->> '{0}',
                          host.ruled_overcommit ->> '{0}')::float8
             END)"""
REPORTED = f"""
WITH reported AS (
    SELECT host.id,
           max(i.total) FILTER (WHERE c.name = 'VCPU') AS vcpus,
           max(i.reserved) FILTER (WHERE c.name = 'VCPU') AS vcpus_reserved,
           {ORDERED.format("cpu")} AS ordered_vcpus_ratio,
           coalesce({ORDERED.format("cpu")},
                    max(i.allocation_ratio) FILTER (WHERE c.name = 'VCPU')) AS vcpus_ratio,
           max(i.total) FILTER (WHERE c.name = 'MEMORY_MB') AS memory,
           max(i.reserved) FILTER (WHERE c.name = 'MEMORY_MB') AS memory_reserved,
           coalesce({ORDERED.format("memory")},
                    max(i.allocation_ratio) FILTER (WHERE c.name = 'MEMORY_MB')) AS memory_ratio,
           max(i.total) FILTER (WHERE c.name = 'DISK_GB') AS disk,
           max(i.reserved) FILTER (WHERE c.name = 'DISK_GB') AS disk_reserved,
           max(i.allocation_ratio) FILTER (WHERE c.name = 'DISK_GB') AS disk_ratio
      FROM hosts_host AS host
      JOIN placement_provider AS root ON {HOST_ROOT}
       AND root.inventory_source = 'api' AND NOT root.is_retiring
      JOIN placement_inventory i ON i.provider_id = root.id
      JOIN placement_resource_class c ON c.id = i.resource_class_id
     GROUP BY host.id),
fits AS (
    SELECT id, greatest(vcpus_ratio, memory_ratio, coalesce(disk_ratio, 1)) < 9999.9999
               AND memory * memory_ratio < 8796093022208 AS is_held
      FROM reported WHERE vcpus IS NOT NULL AND memory IS NOT NULL)
"""  # noqa: S608 - constants only
# Ratios and bytes that our columns do not hold: such a host keeps the capacity that it has.
TOO_LARGE = f"""
{REPORTED} SELECT h.name FROM fits f JOIN hosts_host h ON h.id = f.id WHERE NOT f.is_held ORDER BY 1
"""  # noqa: S608 - constants only
# The figures of hosts_host are written together, as its docstring says.
TAKE_CAPACITY = f"""
{REPORTED},
figures AS (
    SELECT id, vcpus::bigint, vcpus_reserved::bigint,
           greatest(round(vcpus_ratio::numeric, 4), 0.0001) AS vcpus_ratio,
           CASE WHEN ordered_vcpus_ratio IS NULL
                THEN floor(greatest(vcpus - vcpus_reserved, 0) * vcpus_ratio)::bigint
                ELSE floor(greatest(vcpus - vcpus_reserved, 0)::numeric
                           * ordered_vcpus_ratio::numeric)::bigint END AS vcpus_free,
           memory::bigint * 1048576 AS memory, memory_reserved::bigint * 1048576 AS memory_reserved,
           greatest(round(memory_ratio::numeric, 4), 0.0001) AS memory_ratio,
           floor(greatest(memory - memory_reserved, 0)::numeric * 1048576 * memory_ratio::numeric
                )::bigint AS memory_free,
           coalesce(disk, 0)::bigint AS disk, coalesce(disk_reserved, 0)::bigint AS disk_reserved,
           greatest(round(coalesce(disk_ratio, 1)::numeric, 4), 0.0001) AS disk_ratio,
           floor(greatest(coalesce(disk - disk_reserved, 0), 0) * coalesce(disk_ratio, 1)
                )::bigint AS disk_free
      FROM reported JOIN fits USING (id) WHERE fits.is_held)
UPDATE hosts_host h
   SET total_vcpus = f.vcpus, reserved_vcpus = f.vcpus_reserved, vcpus_ratio = f.vcpus_ratio,
       effective_vcpus = f.vcpus_free, total_memory_bytes = f.memory,
       reserved_memory_bytes = f.memory_reserved, memory_ratio = f.memory_ratio,
       effective_memory_bytes = f.memory_free, total_disk_gib = f.disk,
       reserved_disk_gib = f.disk_reserved, disk_ratio = f.disk_ratio,
       effective_disk_gib = f.disk_free, generation = h.generation + 1
  FROM figures f
 WHERE h.id = f.id
   AND (h.total_vcpus, h.reserved_vcpus, h.vcpus_ratio, h.effective_vcpus, h.total_memory_bytes,
        h.reserved_memory_bytes, h.memory_ratio, h.effective_memory_bytes, h.total_disk_gib,
        h.reserved_disk_gib, h.disk_ratio, h.effective_disk_gib)
       IS DISTINCT FROM
       (f.vcpus, f.vcpus_reserved, f.vcpus_ratio, f.vcpus_free, f.memory, f.memory_reserved,
        f.memory_ratio, f.memory_free, f.disk, f.disk_reserved, f.disk_ratio, f.disk_free)
RETURNING h.id
"""  # noqa: S608 - constants only


@dataclass(kw_only=True)
class HostReconciliation:
    """What a run did.

    Attributes:
        refused: Names of hosts that have no provider, and why.
        is_suspicious: So many hosts were gone that none was retired.
        host_ids: Hosts whose capacity was taken from Placement.
    """

    created: int = 0
    updated: int = 0
    retired: int = 0
    removed: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    is_suspicious: bool = False
    host_ids: list[int] = field(default_factory=list)


def reconcile_host_providers() -> HostReconciliation:
    """Make providers follow the hosts of the region, each in a transaction of its own.

    Harmless when it runs twice at once: a provider is locked before it is changed, and what another
    run did is not done again.

    Raises:
        WrongPhaseError: a cloud moves.
    """
    in_transaction(lambda: refuse_while_moving(FOLLOWING))
    plan = current_plan()
    done = HostReconciliation(refused=dict(plan.refused), is_suspicious=plan.is_suspicious)
    if plan.refused or plan.is_suspicious:
        log.error(
            "placement_hosts_refused", hosts=plan.refused, are_too_many_gone=plan.is_suspicious
        )
    _create_traits(host.traits for host in (*plan.create, *plan.update))
    for host in (*plan.create, *plan.update):
        try:
            done.created += in_transaction(lambda host=host: _follow(host))  # type: ignore[misc]
        except (PlacementError, IntegrityError) as error:
            done.refused[host.name] = str(error)
            log.warning("placement_host_skipped", host=host.name, error=str(error))
    done.updated = len(plan.create) + len(plan.update) - done.created - len(done.refused)
    for uuid in plan.retire:
        try:
            removed = in_transaction(lambda uuid=uuid: _retire(uuid))  # type: ignore[misc]
        except NotFound:  # another run was first
            continue
        done.removed += removed
        done.retired += not removed
    in_transaction(lambda: run(NAME_AGGREGATES).rowcount)
    return done


def take_reported_capacity() -> list[int]:
    """Make the inventories that nova-compute writes the capacity of the region's hosts.

    One that is larger than we can hold is logged and left out.

    Returns:
        Primary keys of the hosts that changed.
    """
    too_large = [name for (name,) in fetch(TOO_LARGE)]
    if too_large:
        log.error("placement_capacity_too_large", hosts=too_large)
    return in_transaction(lambda: [row[0] for row in run(TAKE_CAPACITY).fetchall()])


def current_plan() -> HostProviderPlan:
    """Return what a run would do now."""
    hosts = [facts for host in Host.objects.all() if (facts := host_facts(host)) is not None]
    uuids, names = [host.uuid for host in hosts], [host.name for host in hosts]
    rows = fetch(PROVIDERS, [Origin.HOST, uuids, names])
    return plan_host_providers(hosts, [_provider(row) for row in rows])


def host_facts(host: Host) -> HostFacts | None:
    """Return what a provider takes from a host; nothing when its id is no UUID."""
    uuid = canonical_uuid(host.provider_uuid or host.openstack_id)
    if uuid is None:
        return None
    amounts = {
        "VCPU": host.effective_vcpus or host.total_vcpus,
        "MEMORY_MB": (host.effective_memory_bytes or host.total_memory_bytes) // BYTES_PER_MIB,
        "DISK_GB": host.effective_disk_gib or host.total_disk_gib,
    }
    aggregates = (canonical_uuid(aggregate) for aggregate in host.aggregate_uuids)
    return HostFacts(
        uuid=uuid,
        name=host.name,
        zone=host.zone,
        inventories={
            name: InventoryAmounts(total=min(amount, MAX_INTEGER))
            for name, amount in amounts.items()
            if amount > 0
        },
        traits=frozenset(host.traits) | frozenset(host.custom_traits),
        aggregates=frozenset(uuid for uuid in aggregates if uuid),
    )


def _provider(row: tuple[Any, ...]) -> HostProvider:  # Any: columns of PROVIDERS
    uuid, name, zone, origin, is_retiring, source, traits, aggregates, inventories = row
    return HostProvider(
        uuid=uuid,
        name=name,
        zone=zone,
        is_host=origin == Origin.HOST,
        is_retiring=is_retiring,
        follows_host=source == InventorySource.HOST,
        inventories={
            class_name: InventoryAmounts(
                total=total,
                reserved=reserved,
                min_unit=low,
                max_unit=high,
                step_size=step,
                allocation_ratio=ratio,
            )
            for class_name, (total, reserved, low, high, step, ratio) in inventories.items()
        },
        host_traits=frozenset(traits),
        host_aggregates=frozenset(aggregates),
    )


def _create_traits(listed: Iterable[Iterable[str]]) -> None:
    wanted = {name for names in listed for name in names}
    known = {row[0] for row in fetch(KNOWN_TRAITS, [sorted(wanted)])} if wanted else set()
    unknown = sorted(wanted - known)
    for name in unknown:
        if name.startswith(CUSTOM_PREFIX):
            ensure_trait(name)
    skipped = [name for name in unknown if not name.startswith(CUSTOM_PREFIX)]
    if skipped:
        log.warning("placement_unknown_host_traits", traits=skipped)


def _follow(host: HostFacts) -> bool:
    refuse_while_moving(FOLLOWING)
    is_new = not fetch("SELECT 1 FROM placement_provider WHERE uuid = %s::uuid", [host.uuid])
    if is_new:  # another run, or nova-compute, may make it meanwhile; then it is there to be locked
        source = settings.HEADROOM.placement.host_inventories
        is_new = run(CREATE, [host.uuid, host.name, Origin.HOST, source]).rowcount > 0
    try:
        provider = lock_provider(host.uuid)
    except NotFound as error:
        raise Conflict(
            f"Conflicting resource provider name: {host.name} already exists."
        ) from error
    row: Any = run(OLD_FACTS, [provider.id]).fetchone()  # Any: the row is locked, so it is there
    changed = _pass_on_traits(provider, set(row[0]), set(host.traits))
    changed += _pass_on_aggregates(provider, set(row[1]), set(host.aggregates))
    traits, aggregates = sorted(host.traits), sorted(host.aggregates)
    row = run(
        FOLLOW, [host.name, host.zone, Origin.HOST, traits, aggregates, provider.id]
    ).fetchone()
    if row[0] == InventorySource.HOST:
        _follow_inventories(provider, host)
    elif changed:
        raise_generation(provider)
    log_changes([provider.root_id])
    return is_new


def _pass_on_traits(provider: LockedProvider, old: set[str], new: set[str]) -> int:
    removed = run(REMOVE_TRAITS, [provider.id, sorted(old - new)]).rowcount
    return removed + run(ADD_TRAITS, [provider.id, sorted(new - old)]).rowcount


def _pass_on_aggregates(provider: LockedProvider, old: set[str], new: set[str]) -> int:
    removed = run(REMOVE_AGGREGATES, [provider.id, sorted(old - new)]).rowcount
    added = {"id": provider.id, "uuids": sorted(new - old)}
    return removed + run(ADD_AGGREGATES, added).rowcount


def _follow_inventories(provider: LockedProvider, host: HostFacts) -> None:
    replace_all(provider, host.inventories, class_ids(list(host.inventories), "Host"))


def _retire(uuid: str) -> bool:
    refuse_while_moving(FOLLOWING)
    provider = lock_provider(uuid)
    row: Any = run(IS_FREE, {"id": provider.id}).fetchone()  # Any: one row of one column
    if row[0]:
        for statement in FORGET:
            run(statement, [provider.id])
        log_changes([provider.root_id])
        return True
    inventories = current_amounts(provider)
    retired = retired_inventories(inventories)
    if retired != inventories:
        replace_all(provider, retired, class_ids(list(retired), "Host"))
    run(RETIRE, [provider.id])
    log_changes([provider.root_id])
    return False
