"""Looking at a live cloud's services one by one, for checks (``manage.py doctor``)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol

import openstack
from django.conf import settings
from keystoneauth1.exceptions import ClientException
from openstack.connection import Connection
from openstack.exceptions import SDKException

from hosts.clients.cloud import MICROVERSIONS, endpoint_root
from hosts.clients.listing import IDENTITY, LIMES, CloudUnreachable
from journal.keystone import login_options

Json = Any  # bodies keep the APIs' own shapes
TIMEOUT_SECONDS: Final = 5.0
#: Somebody waits for these looks, and lists of a large cloud take their time.
PATIENT_SECONDS: Final = 30.0
#: A ``Date`` header is cut to seconds: on the average half of one is missing.
HALF_A_SECOND: Final = timedelta(seconds=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a service answered.

    Attributes:
        status: Of HTTP.
        body: The JSON; None for anything else.
        ahead: How far its clock is ahead of this machine's, to about a second.
    """

    status: int
    body: Json
    ahead: timedelta | None


class CloudProbe(Protocol):
    """Looks at the services of a cloud."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles of our token."""

    @property
    def service_types(self) -> tuple[str, ...]:
        """Types of the services in the catalog."""

    def address(self, service: str) -> str:
        """Return a service's address as the catalog has it; empty when it is not there."""

    def look(self, service: str, path: str) -> Look:
        """Return the answer to a GET with our token.

        Raises:
            CloudUnreachable: There is none, or no address.
        """

    def microversions(self, service: str) -> tuple[str, str]:
        """Return the first and the last microversion that a service offers; empty without any."""


class OpenStackProbe:
    """A cloud of ``clouds.yaml`` or ``OS_*`` variables, or that of ``HEADROOM_KEYSTONE__...``."""

    def __init__(self, connection: Connection, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        try:
            connection.authorize()
            auth: Any = connection.session.auth  # Any: each plugin that logs in has it
            access = auth.get_access(connection.session)
        except (SDKException, ClientException) as error:
            raise CloudUnreachable(f"login at Keystone: {error}", service=IDENTITY) from error
        self.connection = connection
        self.roles = tuple(sorted(access.role_names))
        self.service_types = tuple(
            sorted({str(entry["type"]) for entry in access.service_catalog.catalog})
        )

    def address(self, service: str) -> str:
        """Return a service's address as the catalog has it; see :class:`CloudProbe`."""
        try:
            found = self.connection.session.get_endpoint(
                **self._filter(service), skip_discovery=True
            )
        except ClientException:  # the catalog does not have it
            return ""
        return str(found or "")

    def look(self, service: str, path: str) -> Look:
        """Return the answer to a GET; see :class:`CloudProbe`."""
        address = self.address(service)
        if not address:
            raise CloudUnreachable(
                f"Keystone's catalog has no address of {service}", service=service, path=path
            )
        begun = datetime.now(UTC)
        try:
            answer = self.connection.session.get(
                endpoint_root(service, address) + path,
                microversion=MICROVERSIONS.get(service),
                microversion_service_type=service,
                raise_exc=False,
                timeout=self._timeout_seconds,
            )
        except (SDKException, ClientException) as error:
            raise CloudUnreachable(
                f"{service}: {type(error).__name__}", service=service, path=path
            ) from error
        middle = begun + (datetime.now(UTC) - begun) / 2
        return Look(
            status=answer.status_code,
            body=_json(answer),
            ahead=_ahead(answer.headers.get("Date", ""), middle),
        )

    def microversions(self, service: str) -> tuple[str, str]:
        """Return what a service offers; see :class:`CloudProbe`."""
        try:
            found = self.connection.session.get_endpoint_data(
                **self._filter(service), discover_versions=True
            )
        except (SDKException, ClientException) as error:
            raise CloudUnreachable(f"{service}: {type(error).__name__}", service=service) from error
        bounds = (found.min_microversion, found.max_microversion) if found else ()
        first, last = (".".join(map(str, bound or ())) for bound in bounds or ((), ()))
        return first, last

    def _filter(self, service: str) -> dict[str, Any]:  # Any: what keystoneauth takes
        config = self.connection.config
        is_public = service in {LIMES, IDENTITY} or service.startswith("liquid-")
        return {
            "service_type": service,
            "interface": "public" if is_public else config.get_interface(service),
            "region_name": config.get_region_name(service),
        }


def named_cloud(name: str | None, *, timeout_seconds: float = PATIENT_SECONDS) -> OpenStackProbe:
    """Return the cloud of an entry of ``clouds.yaml``, or of ``OS_*`` variables.

    Raises:
        CloudUnreachable: There is no such cloud, or Keystone refuses.
    """
    try:
        return OpenStackProbe(openstack.connect(cloud=name), timeout_seconds=timeout_seconds)
    except SDKException as error:
        raise CloudUnreachable(f"cloud {name!r}: {error}", cloud=name) from error


def configured_cloud() -> OpenStackProbe:
    """Return the cloud of ``HEADROOM_KEYSTONE__...``.

    Raises:
        CloudUnreachable: Keystone refuses.
    """
    keystone = settings.HEADROOM.keystone
    plugin, login = login_options(keystone)
    return OpenStackProbe(
        openstack.connect(
            auth_type=plugin,
            auth=login,
            region_name=keystone.region_name or None,
            cacert=keystone.ca_file or None,
            load_yaml_config=False,
            load_envvars=False,
        )
    )


def _json(answer: Any) -> Json:  # Any: a response of requests
    try:
        return answer.json()
    except ValueError:
        return None


def _ahead(date: str, now: datetime) -> timedelta | None:
    try:
        return parsedate_to_datetime(date) + HALF_A_SECOND - now
    except (TypeError, ValueError):
        return None
