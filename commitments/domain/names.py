"""Names of resources, commitments and slots (spec commitments, 3.1, 5.5; spec liquid, 6.1)."""

from __future__ import annotations

import re

from commitments.domain.statuses import ResourceType

RESOURCE_PREFIX = "hw_version_"
RAM_SUFFIX = "_ram"
CORES_SUFFIX = "_cores"
INSTANCES_SUFFIX = "_instances"

_COMMITMENT_UUID = re.compile(r"[a-zA-Z0-9-]{6,40}")


class InvalidResourceName(ValueError):  # noqa: N818 - the specification gives the name
    """A resource name that does not follow ``hw_version_<group><suffix>``.

    Attributes:
        resource_name: The name as given.
        problem: Which check failed.
    """

    def __init__(self, resource_name: str, problem: str) -> None:
        super().__init__(f"invalid resource name {resource_name!r}: {problem}")
        self.resource_name = resource_name
        self.problem = problem


def resource_name_ram(group: str) -> str:
    """Return the LIQUID resource name of a group's memory."""
    return f"{RESOURCE_PREFIX}{group}{RAM_SUFFIX}"


def resource_name_cores(group: str) -> str:
    """Return the LIQUID resource name of a group's cores."""
    return f"{RESOURCE_PREFIX}{group}{CORES_SUFFIX}"


def resource_name_instances(group: str) -> str:
    """Return the LIQUID resource name of a group's VM count."""
    return f"{RESOURCE_PREFIX}{group}{INSTANCES_SUFFIX}"


def flavor_group_from_resource(resource_name: str) -> str:
    """Return the flavor group of a memory resource name (the syncer's parser).

    Raises:
        InvalidResourceName: Prefix, suffix ``_ram`` or group is missing.
    """
    return _group_between(resource_name, RAM_SUFFIX)


def flavor_group_and_type_from_resource(resource_name: str) -> tuple[str, ResourceType]:
    """Return flavor group and type of a memory or cores resource name (the API's parser).

    Raises:
        InvalidResourceName: Prefix, a suffix ``_ram`` or ``_cores``, or group is missing.
    """
    if resource_name.endswith(CORES_SUFFIX):
        return _group_between(resource_name, CORES_SUFFIX), ResourceType.CORES
    return _group_between(resource_name, RAM_SUFFIX), ResourceType.MEMORY


def is_commitment_uuid(text: str) -> bool:
    """Return whether a text has the form of a commitment uuid."""
    return _COMMITMENT_UUID.fullmatch(text) is not None


def _group_between(resource_name: str, suffix: str) -> str:
    if not resource_name.startswith(RESOURCE_PREFIX):
        raise InvalidResourceName(resource_name, f"prefix {RESOURCE_PREFIX!r} is missing")
    rest = resource_name.removeprefix(RESOURCE_PREFIX)
    if not rest.endswith(suffix):
        if f"_{rest}" == suffix:
            raise InvalidResourceName(resource_name, "flavor group is empty")
        raise InvalidResourceName(resource_name, "suffix is not one of those accepted here")
    group = rest.removesuffix(suffix)
    if not group:
        raise InvalidResourceName(resource_name, "flavor group is empty")
    return group
