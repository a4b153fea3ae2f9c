"""What the scheduler says about the hosts of a zone, per compatibility class (spec failover, 11.2).

VMs of one class may use the same hosts, so a class is judged once per run. Classes that may use the
same hosts share the evaluation that ranks them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np

from capacity.groups.flavor_groups import FlavorSpec
from capacity.host_table import current_host_table
from capacity.ledger.placing import without_room
from capacity.ledger.slot_request import NO_DOMAIN, SlotAsk, VMFacts, slot_request
from capacity.nova.nova_call import kvm_pipeline
from capacity.nova.pipelines import usable_pipeline
from capacity.nova.vm_requests import domain_hint, instance_group, texts
from failover.domain.plan import BoolColumn, FloatColumn
from failover.domain.zone_columns import Int64Column, ZoneSnapshot
from failover.selectors.zone import ClassKey
from hosts.models import Instance, ServerGroup
from journal.statements import Row, fetch_rows
from scheduling.engine import Batch, passing_hosts
from scheduling.evaluation import PipelineRunError, class_of
from scheduling.intents import Intent
from scheduling.request import InstanceGroup, PlacementRequest
from scheduling.resources import ZERO
from scheduling.table import HostTable

SLOT_KEY = "failover-reservation"

SELECT_DOMAINS = """
SELECT project.openstack_id, domain.name
  FROM hosts_project AS project
  LEFT JOIN hosts_domain AS domain ON domain.openstack_id = project.domain_id
 WHERE project.openstack_id = ANY(%s)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFacts:
    """What requests of a class have in common.

    Attributes:
        request: A request for the first VM of the class, without size.
        pipeline_name: Pipeline that judges it.
    """

    request: PlacementRequest
    pipeline_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRows:
    """What is read for the requests of classes.

    Attributes:
        specs: VM key -> extra specs of its flavor.
        domains: Project -> name of its domain, where that is known.
    """

    specs: Mapping[int, Mapping[str, str]]
    domains: Mapping[str, str]


def class_rows(specs: Iterable[Row], domains: Iterable[Row]) -> ClassRows:
    """Return rows of (VM key, extra specs) and of (project, name of its domain)."""
    return ClassRows(
        specs={key: texts(_loaded(found)) for key, found in specs},
        domains={project: name for project, name in domains if name is not None},
    )


def _loaded(found: Any) -> Mapping[str, Any]:  # Any: a document, or its text
    """Return a JSON document, which the driver leaves as text in a statement of our own."""
    return json.loads(found) if isinstance(found, str) else dict(found)


def _read_class_rows(
    snapshot: ZoneSnapshot, vms: Iterable[int], keys: Iterable[ClassKey]
) -> ClassRows:
    ids = [int(snapshot.vms.ids[vm]) for vm in vms]
    specs = Instance.objects.filter(pk__in=ids).values_list("pk", "flavor_extra_specs")
    projects = sorted({key.project_id for key in keys})
    return class_rows(specs, fetch_rows(SELECT_DOMAINS, [projects]))


def class_facts(
    snapshot: ZoneSnapshot, table: HostTable, intent: Intent, rows: ClassRows | None = None
) -> list[ClassFacts]:
    """Return what the requests of each class have in common, by class code.

    The hypervisor type comes from the VM's host where its flavor does not say (16.6).
    """
    codes, firsts = np.unique(snapshot.vms.class_code, return_index=True)
    first_vm = dict(zip(codes.tolist(), firsts.tolist(), strict=True))
    keys = [key for key in snapshot.vms.classes if isinstance(key, ClassKey)]
    known = rows or _read_class_rows(snapshot, first_vm.values(), keys)
    specs, domains = known.specs, known.domains
    groups = _server_groups({key.server_group for key in keys} - {""}, table)
    facts = []
    for code, key in enumerate(keys):
        own = specs.get(int(snapshot.vms.ids[first_vm[code]]), {})
        ask = SlotAsk(
            slot_name=snapshot.vms.uuids[first_vm[code]],
            flavor=FlavorSpec(name=key.flavor_name, vcpus=0, memory_bytes=0, extra_specs=own),
            slot=ZERO,
            zone=snapshot.zone,
            project_id=key.project_id,
            domain=domain_hint(domains.get(key.project_id)) if key.project_id else NO_DOMAIN,
            intent=intent,
            vm=VMFacts(
                hypervisor_type=key.hypervisor_type,
                instance_group=groups.get(key.server_group),
            ),
        )
        facts.append(ClassFacts(request=slot_request(ask), pipeline_name=kvm_pipeline(own)))
    return facts


def _server_groups(ids: Collection[str], table: HostTable) -> Mapping[str, InstanceGroup]:
    if not ids:
        return {}
    groups = {}
    for row in ServerGroup.objects.filter(openstack_id__in=ids):
        rows = {at for member in row.members for at in table.instance_index.rows_of(member)}
        groups[row.openstack_id] = instance_group(row, (table.names[at] for at in rows))
    return groups


class SchedulerHosts:
    """The scheduler's view of a zone during one run; implements ``HostChooser``.

    Hosts, classes and pipelines are read at the first question, so a run that has nothing to place
    reads none of them.

    Attributes:
        intent: What hosts are asked for.
        failures: Class code -> why the scheduler could not judge it; such a class has no hosts.
        pipeline: Returns a pipeline by its name, as it was at the first question.
    """

    def __init__(
        self,
        snapshot: ZoneSnapshot,
        *,
        intent: Intent = Intent.RESERVE_FOR_FAILOVER,
        table: HostTable | None = None,
        rows: ClassRows | None = None,
    ) -> None:
        self.snapshot = snapshot
        self._given_table = table
        self._rows_of_classes = rows
        self.intent = intent
        self.failures: dict[int, str] = {}
        self._masks: dict[int, BoolColumn] = {}
        self._masks_of: dict[tuple[str, Hashable], BoolColumn] = {}
        self._distinct: dict[bytes, BoolColumn] = {}
        self.pipeline = cache(usable_pipeline)
        self._without_room = cache(lambda name: without_room(self.pipeline(name)))
        self._batches: dict[str, Batch] = {}
        self._representative: dict[tuple[str, int], PlacementRequest] = {}
        self._requests: dict[tuple[int, int, int], PlacementRequest] = {}

    @cached_property
    def table(self) -> HostTable:
        """Hosts of all zones: the given ones, else as of the first question."""
        return current_host_table() if self._given_table is None else self._given_table

    @cached_property
    def facts(self) -> Sequence[ClassFacts]:
        """What the requests of each class have in common."""
        return class_facts(self.snapshot, self.table, self.intent, self._rows_of_classes)

    @cached_property
    def _rows(self) -> Int64Column:
        row_of = self.table.row_of
        return np.array(
            [row_of.get(name, -1) for name in self.snapshot.hosts.names], dtype=np.int64
        )

    def read(self) -> None:
        """Read all that questions may need, so that they need no database from now on."""
        for facts in self.facts:
            self.pipeline(facts.pipeline_name)

    def compatible(self, class_code: int) -> BoolColumn:
        """Return bool[H], hosts that VMs of a class may run on, whatever room they have."""
        mask = self._masks.get(class_code)
        if mask is None:
            mask = self._masks[class_code] = self._compatible(class_code)
        return mask

    def _compatible(self, class_code: int) -> BoolColumn:
        """Return the hosts of a class; classes that have the same share one column."""
        facts = self.facts[class_code]
        pipeline = self._without_room(facts.pipeline_name)
        key = facts.pipeline_name, class_of(self.table, facts.request, pipeline)
        known = self._masks_of.get(key)
        if known is not None:
            return known
        try:
            passing = passing_hosts(self.table, facts.request, pipeline)
        except PipelineRunError as problem:
            self.failures[class_code] = str(problem)
            return np.zeros(len(self._rows), dtype=np.bool_)
        mask = (self._rows >= 0) & passing[np.maximum(self._rows, 0)]
        mask = self._distinct.setdefault(mask.tobytes(), mask)
        if key[1] is not None:
            self._masks_of[key] = mask
        return mask

    def scores(self, class_code: int, memory_bytes: int, vcpus: int) -> FloatColumn:
        """Return float64[H], what the scheduler prefers; minus infinity where there is no room."""
        try:
            evaluation = self._batch(class_code).evaluation(
                self._request(class_code, memory_bytes, vcpus)
            )
        except PipelineRunError as problem:
            self.failures[class_code] = str(problem)
            return np.full(len(self._rows), -np.inf)
        scores: FloatColumn = evaluation.scores[self._rows]
        scores[self._rows < 0] = -np.inf
        return scores

    def place(self, host: int, class_code: int, memory_bytes: int, vcpus: int) -> None:
        """Count a new reservation on a host from now on, whatever class asks."""
        request = self._request(class_code, memory_bytes, vcpus)
        row = int(self._rows[host])
        for batch in self._batches.values():
            batch.place(row, request)

    def _batch(self, class_code: int) -> Batch:
        name = self.facts[class_code].pipeline_name
        batch = self._batches.get(name)
        if batch is None:
            batch = self._batches[name] = Batch(self.table, self.pipeline(name))
            for row, request in self._placed():
                batch.place(row, request)
        return batch

    def _placed(self) -> Sequence[tuple[int, PlacementRequest]]:
        return max((batch.placed for batch in self._batches.values()), key=len, default=())

    def _request(self, class_code: int, memory_bytes: int, vcpus: int) -> PlacementRequest:
        known = self._requests.get((class_code, memory_bytes, vcpus))
        if known is None:
            known = self._new_request(class_code, memory_bytes, vcpus)
            self._requests[class_code, memory_bytes, vcpus] = known
        return known

    def _new_request(self, class_code: int, memory_bytes: int, vcpus: int) -> PlacementRequest:
        facts = self.facts[class_code]
        key = facts.pipeline_name, id(self.compatible(class_code))  # kept, each kind once
        shared = self._representative.setdefault(key, facts.request)
        # No VM: what was placed for one must not count as a member of its server group.
        return replace(shared, request_key=SLOT_KEY, memory_bytes=memory_bytes, vcpus=vcpus)
