"""Reading raw bodies from the APIs of a live OpenStack cloud (spec region-file)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

import openstack
from keystoneauth1.exceptions import ClientException
from openstack.exceptions import SDKException

from journal.errors import HeadroomError

Json = Any  # bodies keep the APIs' own shapes

IDENTITY: Final = "identity"
COMPUTE: Final = "compute"
IMAGE: Final = "image"
PLACEMENT: Final = "placement"
LIMES: Final = "resources"
# The least that has every field we need: embedded flavors, uuids, policies, extra specs.
MICROVERSIONS: Final = {COMPUTE: "2.64", PLACEMENT: "1.19"}
NOT_FOUND: Final = 404
CLIENT_ERRORS: Final = 400


class CloudUnreachable(HeadroomError):  # noqa: N818 - says what happened
    """The cloud could not be read; the message names service and path."""

    code = "cloud_unreachable"


class CloudReader(Protocol):
    """Gets JSON bodies from the services of a cloud."""

    def get(self, service: str, path: str) -> Json:
        """Return the body of a GET, None for 404.

        Raises:
            CloudUnreachable: Another answer than success or 404, or none.
        """

    def has(self, service: str) -> bool:
        """Return whether the catalog lists a service."""


class OpenStackCloud:
    """A cloud of ``clouds.yaml`` or ``OS_*`` variables, by openstacksdk and keystoneauth."""

    def __init__(self, name: str | None) -> None:
        """Connect.

        Raises:
            CloudUnreachable: No such cloud, or Keystone refuses.
        """
        try:
            self._connection = openstack.connect(cloud=name)
            self._connection.authorize()
        except (SDKException, ClientException) as error:
            message = f"cloud {name!r}: {error}"
            raise CloudUnreachable(message, cloud=name) from error

    def get(self, service: str, path: str) -> Json:
        """Return the body of a GET, None for 404; see :class:`CloudReader`."""
        interface = "public" if service in {LIMES, IDENTITY} else None
        try:
            answer = self._connection.session.get(
                path,
                endpoint_filter={
                    "service_type": service,
                    "interface": interface or self._connection.config.get_interface(service),
                    "region_name": self._connection.config.get_region_name(service),
                },
                microversion=MICROVERSIONS.get(service),
                raise_exc=False,
            )
        except (SDKException, ClientException) as error:
            message = f"{service} {path}: {error}"
            raise CloudUnreachable(message, service=service, path=path) from error
        if answer.status_code == NOT_FOUND:
            return None
        if answer.status_code >= CLIENT_ERRORS:
            message = f"{service} {path}: status {answer.status_code}"
            raise CloudUnreachable(message, service=service, path=path)
        return answer.json()

    @property
    def region_name(self) -> str:
        """Name of the region, else of the cloud."""
        config = self._connection.config
        return str(config.get_region_name() or config.name or "")

    def has(self, service: str) -> bool:
        """Return whether the catalog lists a service."""
        return self._connection.endpoint_for(service, interface="public") is not None


def pages(
    cloud: CloudReader, service: str, path: str, key: str, *, marker: str = "id", limit: int = 1000
) -> Iterator[Json]:
    """Yield the elements of a list that is paged by marker, until a page brings nothing new.

    Args:
        cloud: The cloud.
        service: Service type.
        path: Path of the list.
        key: Key of the list in the body.
        marker: Field of an element that the next page starts after.
        limit: Elements to ask for at once.
    """
    separator = "&" if "?" in path else "?"
    last = ""
    seen: set[str] = set()
    while True:
        after = f"&marker={last}" if last else ""
        body = cloud.get(service, f"{path}{separator}limit={limit}{after}") or {}
        found = [item for item in body.get(key, []) if str(item[marker]) not in seen]
        if not found:
            return
        yield from found
        last = str(found[-1][marker])
        seen = {str(item[marker]) for item in found}
