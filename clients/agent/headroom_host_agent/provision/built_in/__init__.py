"""Provisioners that come with the agent (spec hosts, D.11)."""

from __future__ import annotations

from collections.abc import Mapping

from headroom_host_agent.provision.built_in.base import Place
from headroom_host_agent.provision.built_in.capacity_slice import CapacitySlice
from headroom_host_agent.provision.built_in.disk_quota import DiskQuota
from headroom_host_agent.provision.built_in.hugepages import Hugepages
from headroom_host_agent.provision.built_in.noop import Noop
from headroom_host_agent.provision.built_in.vgpu import Vgpu
from headroom_host_agent.provision.provisioners import BUILT_IN, Provisioner


def built_in(place: Place) -> Mapping[str, Provisioner]:
    """Return all of them by type, for one host."""
    return {
        **BUILT_IN,
        "hugepages": Hugepages(place),
        "vgpu": Vgpu(place),
        "disk_quota": DiskQuota(place),
        "capacity_slice": CapacitySlice(place),
        "noop": Noop(place),
    }
