"""Where VMs run: what the VM list says against what hosts report (spec failover, 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hosts.domain.vm import VM


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedVM:
    """A VM as its host reports it.

    Attributes:
        is_active: Whether it runs.
        name: Display name.
    """

    vm_uuid: str
    is_active: bool = True
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportingHost:
    """A host with the VMs it reports.

    Attributes:
        vms: Its list.
    """

    name: str
    vms: tuple[ReportedVM, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedVMs:
    """VMs with where they are believed to run.

    Attributes:
        vms: In order.
        unknown_host: VMs left out because no known host is theirs.
        elsewhere: VMs left out because another host runs them.
        nowhere: VMs left out because no host runs them.
        duplicates: VMs that a second host reports, as during a live migration.
        not_in_list: VMs that hosts run and the list does not know.
        not_reported: VMs of the list that no host reports at all.
    """

    vms: tuple[VM, ...]
    unknown_host: int = 0
    elsewhere: int = 0
    nowhere: int = 0
    duplicates: int = 0
    not_in_list: tuple[str, ...] = ()
    not_reported: int = 0


def active_hosts(hosts: Iterable[ReportingHost]) -> dict[str, str]:
    """Return VM uuid -> the first host that runs it.

    Source: spec failover, 9.2 step 1.
    """
    active: dict[str, str] = {}
    for host in hosts:
        for vm in host.vms:
            if vm.is_active:
                active.setdefault(vm.vm_uuid, host.name)
    return active


def vms_on_hosts(
    vms: Sequence[VM], hosts: Sequence[ReportingHost], *, trust_host_location: bool
) -> ListedVMs:
    """Return the VMs that run on hosts.

    Args:
        vms: The VM list.
        hosts: Hosts with what they report.
        trust_host_location: Whether hosts decide where a VM is (mode B); otherwise the list does,
            and the host must agree (mode A).

    Source: spec failover, 5.3.
    """
    return _by_host(vms, hosts) if trust_host_location else _by_list(vms, hosts)


def _disagreements(
    vms: Sequence[VM], hosts: Sequence[ReportingHost]
) -> tuple[tuple[str, ...], int]:
    known = {vm.vm_uuid for vm in vms}
    reported = {vm.vm_uuid for host in hosts for vm in host.vms}
    strangers = dict.fromkeys(
        vm.vm_uuid for host in hosts for vm in host.vms if vm.is_active and vm.vm_uuid not in known
    )
    return tuple(strangers), len(known - reported)


def _by_list(vms: Sequence[VM], hosts: Sequence[ReportingHost]) -> ListedVMs:
    active_on = {(host.name, vm.vm_uuid) for host in hosts for vm in host.vms if vm.is_active}
    active_somewhere = {vm_uuid for _, vm_uuid in active_on}
    names = {host.name for host in hosts}
    kept: list[VM] = []
    unknown_host = elsewhere = nowhere = 0
    for vm in vms:
        if vm.host not in names:
            unknown_host += 1
        elif (vm.host, vm.vm_uuid) in active_on:
            kept.append(vm)
        elif vm.vm_uuid in active_somewhere:
            elsewhere += 1
        else:
            nowhere += 1
    not_in_list, not_reported = _disagreements(vms, hosts)
    return ListedVMs(
        vms=tuple(kept),
        unknown_host=unknown_host,
        elsewhere=elsewhere,
        nowhere=nowhere,
        not_in_list=not_in_list,
        not_reported=not_reported,
    )


def _by_host(vms: Sequence[VM], hosts: Sequence[ReportingHost]) -> ListedVMs:
    known = {vm.vm_uuid: vm for vm in vms}
    kept: dict[str, VM] = {}
    duplicates = 0
    for host in hosts:
        for reported in host.vms:
            if not reported.is_active:
                continue
            if reported.vm_uuid in kept:
                duplicates += 1
            elif reported.vm_uuid in known:
                kept[reported.vm_uuid] = replace(known[reported.vm_uuid], host=host.name)
    not_in_list, not_reported = _disagreements(vms, hosts)
    return ListedVMs(
        vms=tuple(kept.values()),
        duplicates=duplicates,
        not_in_list=not_in_list,
        not_reported=not_reported,
    )
