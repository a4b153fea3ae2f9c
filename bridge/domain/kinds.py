"""The kinds of objects that are mirrored, and how they are named in a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LONGEST_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class ObjectKind(StrEnum):
    """Kinds of objects, by their names in Kubernetes."""

    COMMITTED_RESOURCE = "CommittedResource"
    RESERVATION = "Reservation"
    FLAVOR_GROUP_CAPACITY = "FlavorGroupCapacity"
    PROJECT_QUOTA = "ProjectQuota"
    HOST = "Host"

    @property
    def plural(self) -> str:
        """The word in addresses."""
        return PLURALS[self]


PLURALS: Final = {
    ObjectKind.COMMITTED_RESOURCE: "committedresources",
    ObjectKind.RESERVATION: "reservations",
    ObjectKind.FLAVOR_GROUP_CAPACITY: "flavorgroupcapacities",
    ObjectKind.PROJECT_QUOTA: "projectquotas",
    ObjectKind.HOST: "hosts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What tells our objects from others in a cluster.

    Attributes:
        group: API group; prefix of our labels and annotations too.
        region: Which Headroom an object is of, where several feed one cluster; may be empty. It
            ends the names of objects, so that they cannot collide.
    """

    group: str = "cortex.cloud"
    version: str = "v1alpha1"
    region: str = ""

    @property
    def api_version(self) -> str:
        """Group and version as objects bear them."""
        return f"{self.group}/{self.version}"

    @property
    def managed_label(self) -> str:
        """Label of every object of ours; its value is the region."""
        return f"bridge.{self.group}/region"

    @property
    def region_value(self) -> str:
        """Value of the label: the region, or that there is only one."""
        return self.region or "default"

    def object_name(self, plain: str) -> str:
        """Return the name of an object in the cluster.

        Args:
            plain: Its name within the region.

        Raises:
            ValueError: Kubernetes takes no such name.
        """
        name = f"{plain}.{self.region}" if self.region else plain
        name = name.lower()
        if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an object in Kubernetes")
        return name
