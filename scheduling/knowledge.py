"""What some steps know beside the host table (spec scheduling, 17.1, 17.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HOST_UTILIZATION = "host-utilization"
LONG_TERM_CONTENTION = "vmware-long-term-contended-hosts"
SHORT_TERM_CONTENTION = "vmware-short-term-contended-hosts"
PROJECT_NOISINESS = "vmware-project-noisiness"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUtilisation:
    """What a VMware host can give and has given.

    Attributes:
        memory_bytes: Memory that can be allocated.
        used_memory_bytes: Memory in use.
        vcpus: vCPUs that can be allocated.
        used_vcpus: vCPUs in use.
    """

    memory_bytes: int
    used_memory_bytes: int
    vcpus: int
    used_vcpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostContention:
    """CPU contention of a host over some time.

    Attributes:
        average_percent: Average contention in percent.
        maximum_percent: Maximum contention in percent.
    """

    average_percent: float
    maximum_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """Facts by host name; an empty mapping means that the knowledge is missing.

    Attributes:
        utilisation: Host -> utilisation (``host-utilization``).
        long_term_contention: Host -> contention (``vmware-long-term-contended-hosts``).
        short_term_contention: Host -> contention (``vmware-short-term-contended-hosts``).
        noisiness: Project -> host -> average CPU of the project (``vmware-project-noisiness``).
    """

    utilisation: Mapping[str, HostUtilisation] = field(default_factory=dict)
    long_term_contention: Mapping[str, HostContention] = field(default_factory=dict)
    short_term_contention: Mapping[str, HostContention] = field(default_factory=dict)
    noisiness: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


NO_KNOWLEDGE = Knowledge()
