"""Operator's settings per flavor group (spec liquid, 6.4; spec commitments, 3.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from capacity.groups import units

CATCH_ALL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceFlags:
    """What is offered for one resource of a group; everything is off unless switched on.

    Attributes:
        handles_commitments: Change requests for it are accepted.
        handles_dry_run: Dry runs on it are really checked, else accepted as they are.
        has_capacity: It appears in the capacity report.
        has_quota: Its usage report carries quota.
    """

    handles_commitments: bool = False
    handles_dry_run: bool = False
    has_capacity: bool = False
    has_quota: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of one flavor group.

    Attributes:
        ram: Flags of ``hw_version_<group>_ram``.
        cores: Flags of ``hw_version_<group>_cores``.
        instances: Flags of ``hw_version_<group>_instances``.
        ram_unit_gib: Size of one declared RAM unit in GiB; 0 or less means 1.
    """

    ram: ResourceFlags = ResourceFlags()
    cores: ResourceFlags = ResourceFlags()
    instances: ResourceFlags = ResourceFlags()
    ram_unit_gib: int = 1

    @property
    def ram_unit_mib(self) -> int:
        """Size of one declared RAM unit in MiB.

        Raises:
            UnitError: The unit exceeds 2^64 bytes.
        """
        return units.ram_unit_mib(self.ram_unit_gib)


#: What holds while no group has settings, as the reference's chart ships it; its memory is handled
#: (decisions: no group settings).
SHIPPED = {
    CATCH_ALL: GroupSettings(
        ram=ResourceFlags(handles_commitments=True, handles_dry_run=True, has_capacity=True),
        cores=ResourceFlags(handles_dry_run=True, has_capacity=True),
        instances=ResourceFlags(has_capacity=True),
    )
}


def settings_for_group(configured: Mapping[str, GroupSettings], group: str) -> GroupSettings:
    """Return the settings of a group: its own, else those of ``*``, else everything off.

    The exact match replaces ``*`` completely; nothing is merged.
    """
    return configured.get(group) or configured.get(CATCH_ALL) or GroupSettings()
