"""What a host reports of its GPUs (spec hosts, A.11)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """A kind of virtual GPU; ``available`` functions could take one now."""

    name: str
    framebuffer_mb: int
    available: int

    def to_json(self) -> dict[str, object]:
        """Return it for reports."""
        return {
            "name": self.name,
            "framebuffer_mb": self.framebuffer_mb,
            "available": self.available,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PassthroughDevice:
    """A GPU that is handed out whole.

    Attributes:
        address: Like ``0000:3b:00.0``.
        vendor: Four hexadecimal digits, as ``device``.
    """

    address: str
    vendor: str
    device: str
    iommu_group: int
    driver: str | None

    @property
    def is_available(self) -> bool:
        """Whether no VM can hold it: it is not bound to vfio-pci."""
        return self.driver != "vfio-pci"

    def to_json(self) -> dict[str, object]:
        """Return it for reports."""
        return {
            "address": self.address,
            "vendor": self.vendor,
            "device": self.device,
            "iommu_group": self.iommu_group,
            "available": self.is_available,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStatus:
    """Slots of a host's GPUs.

    Attributes:
        mode: ``vgpu`` or ``passthrough``.
        total_slots: Virtual functions, or whole GPUs.
        allocatable_slots: Healthy and free.
        placement_disabled_reason: Why nothing may be placed; empty when it may.
    """

    mode: str
    total_slots: int
    used_slots: int
    allocatable_slots: int
    quarantined_slots: int = 0
    placement_disabled_reason: str = ""
    profiles: tuple[GpuProfile, ...] = ()
    devices: tuple[PassthroughDevice, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return it for reports: profiles of virtual GPUs or whole devices, never both."""
        listed: dict[str, object] = (
            {"profiles": [profile.to_json() for profile in self.profiles]}
            if self.mode == "vgpu"
            else {"devices": [device.to_json() for device in self.devices]}
        )
        slots = {
            "mode": self.mode,
            "total_slots": self.total_slots,
            "used_slots": self.used_slots,
            "allocatable_slots": self.allocatable_slots,
            "quarantined_slots": self.quarantined_slots,
        }
        reason = self.placement_disabled_reason
        return slots | listed | ({"placement_disabled_reason": reason} if reason else {})
