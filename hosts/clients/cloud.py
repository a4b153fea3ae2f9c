"""Reading raw bodies from the APIs of a live OpenStack cloud (spec region-file)."""

from __future__ import annotations

import re
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
# What our paths are written for. A catalog names these services with or without a version, and
# with any; Nova's and Placement's addresses are taken as they stand.
VERSIONS: Final = {IDENTITY: "v3", IMAGE: "v2", LIMES: "v1"}
_VERSION_AT_END: Final = re.compile(r"/v\d+(\.\d+)?$")
NOT_FOUND: Final = 404
CLIENT_ERRORS: Final = 400
BUSY: Final = [429, 502, 503, 504]
"""Answers of a service that is asked again, after its ``Retry-After`` or a growing delay."""
RETRIES: Final = 4


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
            raise CloudUnreachable(f"cloud {name!r}: {error}", cloud=name) from error

    def get(self, service: str, path: str) -> Json:
        """Return the body of a GET, None for 404; see :class:`CloudReader`."""
        try:
            answer = self._connection.session.get(
                self._address(service, path),
                microversion=MICROVERSIONS.get(service),
                microversion_service_type=service,
                raise_exc=False,
                connect_retries=RETRIES,
                status_code_retries=RETRIES,
                retriable_status_codes=BUSY,
            )
        except (SDKException, ClientException) as error:
            raise CloudUnreachable(
                f"{service} {path}: {error}", service=service, path=path
            ) from error
        if answer.status_code == NOT_FOUND:
            return None
        if answer.status_code >= CLIENT_ERRORS:
            raise CloudUnreachable(
                f"{service} {path}: status {answer.status_code}", service=service, path=path
            )
        return answer.json()

    def _address(self, service: str, path: str) -> str:
        """Return where a path of a service is; an address from an answer is left alone."""
        if path.startswith(("http://", "https://")):
            return path
        config = self._connection.config
        is_public = service in {LIMES, IDENTITY}
        found = self._connection.session.get_endpoint(
            service_type=service,
            interface="public" if is_public else config.get_interface(service),
            region_name=config.get_region_name(service),
            skip_discovery=True,
        )
        if not found:
            raise CloudUnreachable(
                f"Keystone's catalog has no address of {service}", service=service, path=path
            )
        return endpoint_root(service, str(found)) + path

    @property
    def region_name(self) -> str:
        """Name of the region, else of the cloud."""
        config = self._connection.config
        return str(config.get_region_name() or config.name or "")

    def has(self, service: str) -> bool:
        """Return whether the catalog lists a service."""
        return self._connection.endpoint_for(service, interface="public") is not None


def endpoint_root(service: str, url: str) -> str:
    """Return the address that paths of a service are appended to.

    Args:
        service: Service type.
        url: Its address in the catalog, such as ``https://keystone/v3/`` or ``https://keystone``.
    """
    root = url.rstrip("/")
    version = VERSIONS.get(service)
    return f"{_VERSION_AT_END.sub('', root)}/{version}" if version else root


def listed(cloud: CloudReader, service: str, path: str, key: str) -> tuple[list[Json], Json]:
    """Return a list that every cloud has, and the body it came in.

    Raises:
        CloudUnreachable: It is not there, or it is no list: nothing may be concluded from that.
    """
    body = cloud.get(service, path)
    if body is None:
        raise CloudUnreachable(
            f"{service} {path}: status {NOT_FOUND}, but every cloud has this list",
            service=service,
            path=path,
        )
    found = body.get(key) if isinstance(body, dict) else None
    if not isinstance(found, list):
        raise CloudUnreachable(
            f"{service} {path}: the answer has no list {key!r}", service=service, path=path
        )
    return found, body


def pages_by_offset(
    cloud: CloudReader, service: str, path: str, key: str, *, limit: int = 1000
) -> Iterator[Json]:
    """Yield the elements of a list that is paged by offset, each once, until a page is empty.

    Args:
        cloud: The cloud.
        service: Service type.
        path: Path of the list.
        key: Key of the list in the body.
        limit: Elements to ask for at once; the service may give fewer.
    """
    offset = 0
    seen: set[str] = set()
    separator = "&" if "?" in path else "?"
    while True:
        at = f"{path}{separator}limit={limit}&offset={offset}"
        page, _ = listed(cloud, service, at, key)
        fresh = [item for item in page if str(item["id"]) not in seen]
        if not fresh:
            return
        yield from fresh
        offset += len(page)
        seen |= {str(item["id"]) for item in fresh}


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
        page, _ = listed(cloud, service, f"{path}{separator}limit={limit}{after}", key)
        found = [item for item in page if str(item[marker]) not in seen]
        if not found:
            return
        yield from found
        last = str(found[-1][marker])
        seen |= {str(item[marker]) for item in found}
