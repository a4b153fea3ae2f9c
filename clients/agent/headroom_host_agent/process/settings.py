"""What an operator may set of the process, beside the resources (spec hosts, D.10)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headroom_host_agent.resources.settings import ResourceSettings


class LeaseLoss(StrEnum):
    """What an agent does without a lease. Nothing that runs is ever ended for it but ``release``.

    Attributes:
        HOLD: Nothing is begun and nothing removed.
        STOP_NEW: Nothing is begun; what has ended is removed.
        RELEASE: As ``STOP_NEW``, and after a while what does not outlive a boot is removed.
    """

    HOLD = "hold"
    STOP_NEW = "stop_new"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings(ResourceSettings):
    """Settings of the whole agent.

    Attributes:
        poll_interval_seconds: Between polls of a server that does not hold them.
        verify_interval_seconds: Between looks whether what was made is as it was made.
        cleanup_minute: Of the local day.
        release_after_seconds: For how long a lease is lost before ``RELEASE`` releases.
        enforce: Whether provisioners write; without it they say what they would.
        cap_slices: Whose memory is capped by what slices of reservations protect.
        libvirt_uri: Whose VMs are listed; empty for none.
        metrics_port: On the loopback address; 0 for none.
    """

    poll_interval_seconds: int = 10
    expire_interval_seconds: int = 20
    job_deadline_seconds: int = 300
    verify_interval_seconds: int = 300
    cleanup_minute: int = 0
    cleanup_most: int = 5
    on_lease_loss: LeaseLoss = LeaseLoss.STOP_NEW
    release_after_seconds: int = 600
    enforce: bool = False
    provisioners: tuple[str, ...] = ("accounting",)
    cap_slices: tuple[str, ...] = ()
    allow_machine_slice: bool = False
    libvirt_uri: str = ""
    metrics_port: int = 0
