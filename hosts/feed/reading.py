"""Handing the lists of a live cloud to the readers of region files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import structlog
from django.conf import settings
from django.db.models import QuerySet

from hosts.clients.listing import COMPUTE, CloudReader, CloudUnreachable, listed, pages
from hosts.domain.shrinking import has_shrunk_too_much
from hosts.feed.lists import LIVE_LISTS, CloudList, in_parallel, own_id_of_migration
from hosts.models import Aggregate, Flavor, Host, HostState, ServerMigration
from hosts.region.flavors import FLAVORS
from hosts.region.inventory import (
    AGGREGATES,
    COMPUTE_BINARY,
    HYPERVISORS,
    PROVIDERS,
    SERVICES,
)
from hosts.region.moving import MIGRATIONS
from hosts.region.node import Node, RegionFileError
from hosts.region.registry import Shape
from hosts.region.run import ImportRun, Live
from hosts.region.servers import SERVERS, VM_STATE, absent_vms

log = structlog.get_logger(__name__)

DELETED: Final = "DELETED"
UNKNOWN: Final = "UNKNOWN"
PROGRESS_EVERY: Final = 500
MOST_WITNESSES: Final = 8
#: A token is of one project: VMs of two that are there at their own address show that it sees all.
ENOUGH_OWNERS: Final = 2
#: Nova lists deleted VMs to administrators alone, and these are whom it hides nothing from.
FOR_ADMINISTRATORS: Final = "/servers/detail?all_tenants=1&status=deleted&limit=1"
#: Of the element of a list: what its row is found by.
KEYS: Final = {
    HYPERVISORS: "hypervisor_hostname",
    SERVICES: "host",
    AGGREGATES: "uuid",
    MIGRATIONS: "uuid",
}

Json = Any  # bodies keep the APIs' own shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """A list that is one answer: whole or none, and never asked for a row by itself.

    Attributes:
        stored: Keys of the rows that there are.
        key: Returns the key of an element; empty for one that has no row.
        paths: Returns the addresses that answer 404 once the rows of these keys are gone; None
            where one is not known.
    """

    stored: Callable[[], QuerySet[Any, str]]
    key: Callable[[Json], str]
    paths: Callable[[Collection[str]], list[str] | None]


def _service_paths(hosts: Collection[str]) -> list[str]:
    """Return the addresses of hypervisors: Nova deletes them with their service, which has none."""
    ids = Host.objects.filter(service_host__in=hosts).order_by("name")
    return [
        f"/os-hypervisors/{quote(id_, safe='')}"
        for id_ in ids.values_list("openstack_id", flat=True)
    ]


def _aggregate_paths(uuids: Collection[str]) -> list[str] | None:
    """Return the addresses of aggregates; None if the number of one is not known."""
    numbers = Aggregate.objects.filter(uuid__in=uuids).order_by("uuid")
    known = list(numbers.values_list("nova_number", flat=True))
    return None if None in known else [f"/os-aggregates/{number}" for number in known]


WHOLE: Final[Mapping[str, _Whole]] = {
    SERVICES: _Whole(
        stored=lambda: (
            Host.objects.exclude(service_host="")
            .order_by()
            .values_list("service_host", flat=True)
            .distinct()
        ),
        key=lambda one: str(one.get("host")) if one.get("binary") == COMPUTE_BINARY else "",
        paths=_service_paths,
    ),
    AGGREGATES: _Whole(
        stored=lambda: Aggregate.objects.values_list("uuid", flat=True),
        key=lambda one: str(one.get("uuid") or ""),
        paths=_aggregate_paths,
    ),
    PROVIDERS: _Whole(
        stored=lambda: Host.objects.exclude(provider_uuid="").values_list(
            "provider_uuid", flat=True
        ),
        key=lambda one: "" if one.get("parent_provider_uuid") else str(one.get("uuid")),
        paths=lambda uuids: [
            f"/resource_providers/{quote(uuid, safe='')}" for uuid in sorted(uuids)
        ],
    ),
}
Sinks = Mapping[str, tuple[Shape, Callable[[Node], None]]]


class CloudSource:
    """What a pass reads of a cloud, and what it asks for afterwards."""

    def __init__(self, cloud: CloudReader, lists: Sequence[CloudList], *, most_asked: int) -> None:
        """Remember where to read.

        Args:
            lists: What a pass reads.
            most_asked: Most elements of a list that are asked for one by one.
        """
        self._cloud = cloud
        self._lists = lists
        self._most_asked = most_asked
        self._witnesses: dict[str, dict[str, str]] = {}
        self._counts: Counter[str] = Counter()
        self._gone: dict[str, set[str]] = {}
        self._frozen: Mapping[str, Collection[str]] = {}
        self._proofs: dict[str, bool] = {}
        self._administers: bool | None = None

    def read(self, run: ImportRun, sinks: Sinks) -> None:
        """Hand every element to its sink; one that is malformed is told and its row stays.

        Raises:
            CloudUnreachable: A list could not be read to its end: nothing follows from it.
        """
        live = run.live
        if live is None:
            raise ValueError("a run over a live cloud says what it knows of it")
        self._frozen = live.frozen
        for each in self._lists:
            run.progress.step_begun(f"reading {each.section}")
            run.sections_seen.add(each.section)
            elements = each.read(self._cloud)
            if each.section in WHOLE and not run.options.accepts_shrink:
                elements = self._believed(each, elements)
            for number, element in enumerate(elements):
                if number % PROGRESS_EVERY == 0:
                    run.progress.step_grown(PROGRESS_EVERY)
                if is_known(live, each.section, element):
                    node = Node(element, each.service, each.section, f"[{number}]")
                    if not _is_taken(run, live, node, sinks[each.section][1]):
                        continue
                    self._remember(each.section, element)
        _freeze_hosts(live)

    def find_gone(self, section: str, absent: Sequence[str]) -> Collection[str]:
        """Return which rows that a list lacks the cloud says do not exist, each asked for itself.

        Where even what was listed is answered with 404, nothing is believed, and of what Nova hides
        from others only an administrator is. What could not be asked, or is more than may be asked
        in a pass, stays for the next one.
        """
        found = self._gone.setdefault(section, set())
        (each,) = [one for one in LIVE_LISTS if one.section == section]
        if not each.own and each.is_over is None:
            return absent
        unknown = [key for key in absent if key not in found][: self._most_asked]
        asked = self._in_sight(section, _own_ids(section, unknown))
        if not asked or not self._is_credible(each):
            return found
        answers = in_parallel(lambda key: (key, self._is_missing(each, asked[key])), asked)
        found.update(key for key, is_missing in answers if is_missing)
        return found

    def proves_loss(self, section: str) -> bool:
        """Return whether all that a list lacks is gone, however much: asked once, before removals.

        Each VM that it lacks has to answer 404, and the hypervisors must not count more VMs than
        are listed. Of lists that are one answer it was asked when they were read.
        """
        if section == SERVERS and section not in self._proofs:
            self._proofs[section] = self._proves_loss_of_vms()
        return self._proofs.get(section, False)

    def _proves_loss_of_vms(self) -> bool:
        frozen = self._frozen.get(SERVERS, ())
        stored = absent_vms(most=self._most_asked + len(frozen) + 1)
        absent = [vm_uuid for vm_uuid in stored if vm_uuid not in frozen]
        if len(absent) > self._most_asked or not self._hypervisors_agree():
            return False
        return {*absent} <= {*self.find_gone(SERVERS, absent)}

    def _hypervisors_agree(self) -> bool:
        """Return whether the hypervisors that are up count no more VMs than are listed."""
        try:
            found = list(pages(self._cloud, COMPUTE, "/os-hypervisors/detail", "hypervisors"))
        except CloudUnreachable as error:
            log.info("feed_absence_unknown", section=SERVERS, error=error.message)
            return False
        counts = [one.get("running_vms") for one in found if one.get("state") == HostState.UP]
        told = [count for count in counts if isinstance(count, int)]
        return bool(told) and len(told) == len(counts) and sum(told) <= self._counts[SERVERS]

    def _in_sight(self, section: str, asked: Mapping[str, str]) -> Mapping[str, str]:
        """Return the rows of which a 404 says that they are gone: not that they are hidden.

        From whoever is no administrator Nova hides VMs of other projects, also if it lists them,
        and flavors that are not public.
        """
        if section == FLAVORS:
            private = Flavor.objects.filter(openstack_id__in=asked, is_public=False)
            hidden = set(private.values_list("openstack_id", flat=True))
        elif section == SERVERS and len(self._witnesses.get(section, ())) < ENOUGH_OWNERS:
            hidden = set(asked)
        else:
            hidden = set()
        if not hidden or self._is_administrator():
            return asked
        return {key: own_id for key, own_id in asked.items() if key not in hidden}

    def _is_administrator(self) -> bool:
        if self._administers is None:
            try:
                listed(self._cloud, COMPUTE, FOR_ADMINISTRATORS, "servers")
                self._administers = True
            except CloudUnreachable as error:
                log.info("feed_is_no_administrator", error=error.message)
                self._administers = False
        return self._administers

    def _believed(self, each: CloudList, elements: Iterator[Json]) -> Iterator[Json]:
        """Yield the elements of a list that is one answer.

        Hosts are made of several lists: where one of these lacks a lot, nothing of a host is true.

        Raises:
            CloudUnreachable: It has lost too many rows, or all, and the cloud does not say of each
                of them that it is gone.
        """
        whole = WHOLE[each.section]
        before, count = whole.stored().count(), 0
        keys: set[str] = set()
        for element in elements:
            if key := whole.key(element):
                count += 1
                keys.add(key)
            yield element
        chosen = settings.HEADROOM.slots
        if (before and not count) or has_shrunk_too_much(
            before, count, max_ratio=chosen.max_drop_ratio, max_rows=chosen.max_drop_rows
        ):
            if self._are_gone(each, whole, keys):
                self._proofs[each.section] = True
                return
            raise CloudUnreachable(
                f"{each.section} shrank from {before} to {count}: hosts stay as they are until the "
                "list is back or an operator accepts it (--accept-shrink)",
                service=each.service,
            )

    def _are_gone(self, each: CloudList, whole: _Whole, keys: Collection[str]) -> bool:
        """Return whether the cloud answers 404 for every row that is not listed, and for no other.

        Without a row that is both listed and found no 404 is believed.
        """
        stored = set(whole.stored())
        absent, there = stored - {*keys}, sorted(stored & {*keys})[:MOST_WITNESSES]
        if not there or len(absent) > self._most_asked:
            return False
        of_witnesses, of_absent = whole.paths(there), whole.paths(absent)
        if of_witnesses is None or of_absent is None:
            return False
        is_missing = partial(self._is_missing_at, each.service)
        if any(in_parallel(is_missing, of_witnesses)):
            return False
        return all(in_parallel(is_missing, of_absent))

    def _remember(self, section: str, element: Json) -> None:
        """Keep an element of each owner: who sees one thing need not see another's."""
        self._counts[section] += 1
        witnesses = self._witnesses.setdefault(section, {})
        owner = str(element.get("tenant_id") or "")
        if owner not in witnesses and len(witnesses) < MOST_WITNESSES:
            witnesses[owner] = str(element.get("id"))

    def _is_credible(self, each: CloudList) -> bool:
        """Return whether all that is listed of some owners is found when it is asked for.

        Nova hides VMs of other projects from whoever is no administrator, also from those that may
        list them.
        """
        witnesses = self._witnesses.get(each.section, {}).values() if each.own else ()
        return not any(in_parallel(lambda own: self._is_missing(each, own), witnesses))

    def _is_missing(self, each: CloudList, element_id: str) -> bool:
        try:
            if each.is_over is not None:
                return each.is_over(self._cloud, element_id)
        except CloudUnreachable as error:
            log.info("feed_absence_unknown", section=each.section, error=error.message)
            return False
        return self._is_missing_at(each.service, each.path_of(element_id))

    def _is_missing_at(self, service: str, path: str) -> bool:
        try:
            return self._cloud.get(service, path) is None
        except CloudUnreachable as error:
            log.info("feed_absence_unknown", path=path, error=error.message)
            return False


def is_known(live: Live, section: str, element: Json) -> bool:
    """Return whether an element says what it is; remember what is deleted or out of sight.

    Nova lists what it knows of the cells that are down, as partial records.

    Args:
        live: What is remembered of the cloud.
    """
    if section == SERVERS and element.get("status") == DELETED:
        live.deleted.add(str(element.get("id")))
        return False
    sign = {SERVERS: VM_STATE, SERVICES: "zone"}.get(section)
    is_partial = sign is not None and element.get("status") == UNKNOWN and sign not in element
    if is_partial:
        key = str(element.get(KEYS.get(section, "id")))
        live.frozen.setdefault(section, set()).add(key)
    return not is_partial


def _is_taken(run: ImportRun, live: Live, node: Node, sink: Callable[[Node], None]) -> bool:
    """Hand an element to its sink; one that is malformed keeps the row that it has."""
    try:
        sink(node)
    except RegionFileError as error:
        key = str(node.fields.get(KEYS.get(node.section, "id")))
        live.frozen.setdefault(node.section, set()).add(key)
        run.report.skip(node.section, key, "malformed", error.message)
        return False
    return True


def _freeze_hosts(live: Live) -> None:
    """Keep the hosts of services of which only the name is known."""
    if services := live.frozen.get(SERVICES):
        names = Host.objects.filter(service_host__in=services).values_list("name", flat=True)
        live.frozen.setdefault(HYPERVISORS, set()).update(names)


def _own_ids(section: str, keys: Sequence[str]) -> dict[str, str]:
    """Return the id by which the cloud knows each row."""
    if section == MIGRATIONS:
        moving = ServerMigration.objects.filter(uuid__in=keys).order_by("uuid")
        return {
            uuid: own_id_of_migration(uuid, vm_uuid)
            for uuid, vm_uuid in moving.values_list("uuid", "vm_uuid")
        }
    if section != HYPERVISORS:
        return {key: key for key in keys}
    hosts: Iterator[tuple[str, str]] = iter(
        Host.objects.filter(name__in=keys).order_by("name").values_list("name", "openstack_id")
    )
    return dict(hosts)
