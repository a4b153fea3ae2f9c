"""Names that other systems know (spec failover, 2, 11.2)."""

from __future__ import annotations

from typing import Final

PIPELINE_REUSE: Final = "kvm-valid-host-reuse-failover-reservation"
PIPELINE_NEW: Final = "kvm-new-failover-reservation"
PIPELINE_ACKNOWLEDGE: Final = "kvm-acknowledge-failover-reservation"

PIPELINE_GENERAL: Final = "kvm-general-purpose-load-balancing"
PIPELINE_HANA: Final = "kvm-hana-bin-packing"

RESOURCE_CPU: Final = "cpu"
RESOURCE_MEMORY: Final = "memory"

RESERVATION_ACTIVE: Final = "ReservationActive"
