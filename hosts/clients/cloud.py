"""Reading raw bodies from the APIs of a live OpenStack cloud (spec region-file)."""

from __future__ import annotations

import re
from typing import Any, Final

import openstack
import orjson
from keystoneauth1.exceptions import ClientException
from openstack.exceptions import SDKException

from hosts.clients.listing import (
    COMPUTE,
    IDENTITY,
    IMAGE,
    LIMES,
    NOT_FOUND,
    PLACEMENT,
    CloudUnreachable,
    Refusal,
)

Json = Any  # bodies keep the APIs' own shapes
Place = tuple[list[str] | str | None, str | None]
"""Interfaces in order of preference, and region."""

# What is asked for. Of Nova: uuids, embedded flavors, policies, extra specs, and partial records
# of cells that are down (2.69); amounts of hypervisors, which 2.88 takes away.
MICROVERSIONS: Final = {COMPUTE: "2.69", PLACEMENT: "1.19"}
# What our paths are written for. A catalog names these services with or without a version, and
# with any; Nova's and Placement's addresses are taken as they stand.
VERSIONS: Final = {IDENTITY: "v3", IMAGE: "v2", LIMES: "v1"}
_VERSION_AT_END: Final = re.compile(r"/v\d+(\.\d+)?$")
NOT_ACCEPTABLE: Final = 406
CLIENT_ERRORS: Final = 400
SERVER_ERRORS: Final = 500
LONGEST_MESSAGE: Final = 300
BUSY: Final = [429, 502, 503, 504]
"""Answers of a service that is asked again, after its ``Retry-After`` or a growing delay."""
RETRIES: Final = 4
ENVIRONMENT: Final = "envvars"
"""Name of the cloud that the ``OS_*`` variables describe."""
_NUL: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


class OpenStackCloud:
    """A cloud of ``clouds.yaml`` or ``OS_*`` variables, by openstacksdk and keystoneauth."""

    def __init__(self, name: str | None, *, timeout_seconds: float | None = None) -> None:
        """Connect.

        Args:
            name: Of the cloud.
            timeout_seconds: Longest silence of a service; None waits.

        Raises:
            CloudUnreachable: No such cloud, or Keystone refuses.
        """
        self._timeout_seconds = timeout_seconds
        self._places: dict[str, Place] = {}
        try:
            self._connection = openstack.connect(cloud=name, api_timeout=timeout_seconds)
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
                timeout=self._timeout_seconds,
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
            wanted = MICROVERSIONS.get(service)
            is_too_old = answer.status_code == NOT_ACCEPTABLE
            reason = f"; it has to offer microversion {wanted}" if is_too_old else ""
            raise CloudUnreachable(
                f"{service} {path}: status {answer.status_code}{reason}",
                service=service,
                path=path,
                answer=answer.status_code,
            )
        return _json_of(answer.content, service, path)

    def change(self, service: str, method: str, path: str, body: Json) -> Refusal | None:
        """Send a body once; None when it was taken, else what the service says.

        Raises:
            CloudUnreachable: There was no answer, or the service is in trouble.
        """
        answer = self._send(service, method, path, body)
        return answer if isinstance(answer, Refusal) else None

    def ask(self, service: str, path: str, body: Json) -> Json | Refusal:
        """Send a question as a POST; return its answer, or what the service says instead.

        Raises:
            CloudUnreachable: As for changes, or the answer is no JSON.
        """
        answer = self._send(service, "POST", path, body)
        return answer if isinstance(answer, Refusal) else _json_of(answer, service, path)

    def _send(self, service: str, method: str, path: str, body: Json) -> bytes | Refusal:
        try:
            answer = self._connection.session.request(
                self._address(service, path),
                method,
                json=body,
                microversion=MICROVERSIONS.get(service),
                microversion_service_type=service,
                raise_exc=False,
                timeout=self._timeout_seconds,
            )
        except (SDKException, ClientException) as error:
            raise CloudUnreachable(
                f"{service} {path}: {error}", service=service, path=path
            ) from error
        if answer.status_code < CLIENT_ERRORS:
            return bytes(answer.content)
        if answer.status_code >= SERVER_ERRORS:
            raise CloudUnreachable(
                f"{service} {path}: status {answer.status_code}",
                service=service,
                path=path,
                answer=answer.status_code,
            )
        return Refusal(status=answer.status_code, message=_message_of(answer.content))

    def _address(self, service: str, path: str) -> str:
        """Return where a path of a service is; an address from an answer is left alone."""
        if path.startswith(("http://", "https://")):
            return path
        interface, region = self._places.get(service) or self._place(service)
        found = self._connection.session.get_endpoint(
            service_type=service,
            interface=interface,
            region_name=region,
            skip_discovery=True,
        )
        if not found:
            raise CloudUnreachable(
                f"Keystone's catalog has no address of {service}", service=service, path=path
            )
        return endpoint_root(service, str(found)) + path

    def _place(self, service: str) -> Place:
        """Return interface and region of a service; to look them up costs as much as a request."""
        config = self._connection.config
        is_public = service in {LIMES, IDENTITY}
        interface = "public" if is_public else config.get_interface(service)
        self._places[service] = interface, config.get_region_name(service)
        return self._places[service]

    @property
    def region_name(self) -> str:
        """Name of the region, else of the cloud."""
        config = self._connection.config
        return str(config.get_region_name() or config.name or "")

    def has(self, service: str) -> bool:
        """Return whether the catalog lists a service."""
        return self._connection.endpoint_for(service, interface="public") is not None


def _json_of(content: bytes, service: str, path: str) -> Json:
    """Return the JSON of an answer, without NUL: no column takes it, and users write it to Nova."""
    if b"\\u0000" in content:
        content = _NUL.sub(rb"\1", content)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise CloudUnreachable(
            f"{service} {path}: the answer is no JSON: {error}", service=service, path=path
        ) from None


def _message_of(content: bytes) -> str:
    """Return what an error's body says, in Nova's form or in any other."""
    try:
        (error,) = orjson.loads(content).values()
        message = str(error["message"])
    except (orjson.JSONDecodeError, AttributeError, ValueError, TypeError, KeyError):
        message = content.decode(errors="replace")
    return " ".join(message.replace("\0", " ").split())[:LONGEST_MESSAGE]


def endpoint_root(service: str, url: str) -> str:
    """Return the address that paths of a service are appended to.

    Args:
        url: Its address in the catalog, such as ``https://keystone/v3/`` or ``https://keystone``.
    """
    root = url.rstrip("/")
    version = VERSIONS.get(service)
    return f"{_VERSION_AT_END.sub('', root)}/{version}" if version else root
