"""What the cloud's APIs do not say of hosts: racks, conditions, CPU features (spec scheduling, 6).

Nova and Placement describe a hypervisor elsewhere in the file; these facts come from an operator's
inventory or from the objects of the hypervisor operator, and only schedulers read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from django.db.models import Q

from hosts.models import Host
from hosts.region.node import Json, Node
from hosts.region.registry import DumpOptions, Phase, RegionSection, Step, registry
from hosts.region.run import ImportRun, Unique
from hosts.region.staging import StagingTable, as_json
from journal.statements import execute, fetch_rows, fetch_value

HOST_FACTS: Final = "headroom.hosts"
COLUMNS: Final = ("name", "building_block", "custom_traits", "conditions", "domain_capabilities")
CAPABILITIES: Final = ("cpu_modes", "devices", "features")
STATUSES: Final = ("True", "False", "Unknown")

UNKNOWN_HOSTS = """
SELECT facts.name FROM stage_host_facts AS facts
 WHERE NOT EXISTS (SELECT FROM hosts_host AS host WHERE host.name = facts.name)
 ORDER BY facts.name
"""
# A host that is not in service yet, or was not brought in, stays so whatever the files say.
STAYING = """
(CASE WHEN host.condition_reasons -> 'Ready' ->> 'reason' = 'Onboarding'
      THEN jsonb_strip_nulls(jsonb_build_object(
           'Onboarding', host.conditions -> 'Onboarding', 'Ready', 'False'))
      ELSE '{}' END)
"""
# Hosts are locked by key before; one that the facts do not change is not written.
UPDATE = f"""
UPDATE hosts_host AS host
   SET building_block = facts.building_block, custom_traits = facts.custom_traits,
       conditions = facts.conditions || {STAYING},
       domain_capabilities = facts.domain_capabilities,
       generation = host.generation + 1, updated_at = statement_timestamp()
  FROM stage_host_facts AS facts
 WHERE facts.name = host.name AND NOT host.is_self_described
   AND (host.building_block, host.custom_traits, host.conditions, host.domain_capabilities)
       IS DISTINCT FROM (facts.building_block, facts.custom_traits, facts.conditions || {STAYING},
                         facts.domain_capabilities)
"""  # noqa: S608 - constants only
FORGET = f"""
UPDATE hosts_host AS host
   SET building_block = '', custom_traits = '{{}}', conditions = {STAYING},
       domain_capabilities = '{{}}',
       generation = host.generation + 1, updated_at = statement_timestamp()
 WHERE NOT EXISTS (SELECT FROM stage_host_facts AS facts WHERE facts.name = host.name)
   AND NOT host.is_self_described
   AND (host.building_block <> '' OR host.custom_traits <> '{{}}' OR host.conditions <> {STAYING}
        OR host.domain_capabilities <> '{{}}')
"""  # noqa: S608 - constants only


def register() -> None:
    """Register the section and steps of this module."""
    registry.add(
        RegionSection(path=HOST_FACTS, reader=_read, dumper=_dump_facts),
        Step(Phase.WRITE, 46, "facts of hosts", _write, after=frozenset({HOST_FACTS})),
        Step(Phase.PRUNE, 46, "facts of hosts", _prune),
    )


def _read(run: ImportRun) -> Callable[[Node], None]:
    stage = StagingTable(run, table="hosts_host", columns=COLUMNS, name="stage_host_facts")
    run.stash[HOST_FACTS] = stage
    unique = Unique("host")

    def read(node: Node) -> None:
        name = node.text("name")
        unique.check(node, name, "name")
        stage.add(
            (
                name,
                node.text("building_block", default=""),
                node.texts("custom_traits", required=False),
                as_json(_conditions(node)),
                as_json(_capabilities(node)),
            )
        )

    return read


def _conditions(node: Node) -> dict[str, str]:
    conditions = node.text_map("conditions")
    for name, status in conditions.items():
        shown = status.capitalize()
        if shown not in STATUSES:
            raise node.error(f"conditions.{name}", f"must be one of {', '.join(STATUSES)}")
        conditions[name] = shown
    return dict(sorted(conditions.items()))


def _capabilities(node: Node) -> dict[str, list[str]]:
    stated = node.child("domain_capabilities", required=False)
    unknown = sorted(set(stated.fields) - set(CAPABILITIES))
    if unknown:
        raise stated.error(unknown[0], f"must be one of {', '.join(CAPABILITIES)}")
    return {name: stated.texts(name) for name in CAPABILITIES if stated.has(name)}


def _write(run: ImportRun) -> None:
    stage: StagingTable = run.stash[HOST_FACTS]
    stage.finish()
    unknown = [name for (name,) in fetch_rows(UNKNOWN_HOSTS)]
    for name in unknown:
        run.report.skip(HOST_FACTS, name, "unknown_host", "is no hypervisor")
    total = fetch_value("SELECT count(*) FROM stage_host_facts") - len(unknown)
    counts = run.report.of(HOST_FACTS)
    updated = execute(UPDATE)
    counts.updated += updated
    counts.unchanged += total - updated


def _prune(run: ImportRun) -> None:
    if run.prunes(HOST_FACTS):
        run.report.of(HOST_FACTS).removed += execute(FORGET)


def _dump_facts(_: DumpOptions) -> Iterator[Json]:
    stated = Host.objects.exclude(
        Q(building_block="", custom_traits=[], conditions={}, domain_capabilities={})
    )
    for host in stated.order_by("name").iterator():
        yield {
            "name": host.name,
            "building_block": host.building_block,
            "custom_traits": sorted(host.custom_traits),
            "conditions": host.conditions,
            "domain_capabilities": host.domain_capabilities,
        }
