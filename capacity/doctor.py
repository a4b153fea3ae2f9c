"""Checks of the figures: do other sources say the same of hosts, and are groups as wished?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from capacity.figures.group_capacity import largest_group
from capacity.groups.refreshing import overruled_rules
from capacity.ledger.allocated import chosen_source, drift_from, is_silent, known_sources
from capacity.ledger.recounting import counted_otherwise
from capacity.models import FlavorGroup, FlavorGroupSnapshot
from core.doctor.findings import Check, Finding, broken, doubtful, fine
from core.text import memory_text, plural
from hosts.models import Host

EXAMPLES: Final = 3


def capacity_checks() -> Mapping[str, Check]:
    """Return them by name."""
    return {"hosts": check_hosts, "flavor groups": check_groups, "drift": check_drift}


def check_hosts() -> Iterator[Finding]:
    """Look whether there are hosts, each in a zone."""
    count = Host.objects.count()
    if not count:
        yield doubtful("there are no hosts", "./run manage connect, or import_region FILE")
        return
    homeless = Host.objects.filter(zone="")
    if names := list(homeless.order_by("name").values_list("name", flat=True)[:EXAMPLES]):
        yield doubtful(
            f"{plural(homeless.count(), 'host')} without a zone: {', '.join(names)}, ...",
            "put them into an aggregate with an availability zone",
        )
    yield fine(plural(count, "host"))


def check_groups() -> Iterator[Finding]:
    """Look whether there are flavor groups, and rules that flavors overrule."""
    snapshot = FlavorGroupSnapshot.objects.first()
    names = FlavorGroup.objects.filter(is_retired=False).order_by("name")
    if snapshot is None or not snapshot.is_ready:
        yield broken("flavor groups were not extracted yet", "start a worker, or read the cloud")
    elif not names:
        yield broken(
            "no flavor belongs to a group, so nothing can be committed",
            "./run manage connect proposes rules (or the extra spec quota:hw_version)",
        )
    else:
        yield fine(", ".join(names.values_list("name", flat=True)))
    for name in names.model.objects.filter(is_retired=True).values_list("name", flat=True):
        yield doubtful(
            f"{name}: no flavor belongs to it, commitments do", "give it a flavor, or let them end"
        )
    for rule, flavors in overruled_rules():
        (flavor, group), *_ = flavors
        yield doubtful(
            f"the rule {rule.flavor_pattern} for {rule.group}: {flavor} says it is of {group}",
            "remove the rule, or the extra spec quota:hw_version of the flavor",
        )
    if (largest := largest_group()) is not None:
        group, hosts = largest
        yield fine(f"Nova's max_placement_results has to be {hosts} or more, as for {group}")


def check_drift() -> Iterator[Finding]:
    """Compare what hosts carry by the source in force with what the others say."""
    former = counted_otherwise()
    for source, count in sorted(Counter(name or "nobody" for name in former.values()).items()):
        yield doubtful(
            f"{plural(count, 'host')} still counted from {source}: HEADROOM_ALLOCATION_SOURCE is "
            f"{chosen_source()} now",
            "wait for capacity.recount_rooms (10 s); if it stays, see that a worker runs",
        )
    for source in sorted(known_sources()):
        differing = drift_from(source)
        if not differing:
            yield fine(f"{source}: no host differs")
            continue
        if source != chosen_source() and is_silent(source):
            yield fine(f"{source}: tells of no VM, and is not what hosts are counted from")
            continue
        hosts = Host.objects.in_bulk([one.host_id for one in differing[:EXAMPLES]])
        examples = "; ".join(
            f"{hosts[one.host_id].name} {memory_text(one.memory_bytes)}, {one.vcpus:+} vCPUs"
            for one in differing[:EXAMPLES]
            if one.host_id in hosts
        )
        told = f"{source}: {plural(len(differing), 'host')} otherwise than counted: {examples}"
        if source == chosen_source():
            yield broken(told, "wait for the next recount; if it stays, report it")
        else:
            yield doubtful(told, "./run manage placement_audit; nova-manage placement audit")
