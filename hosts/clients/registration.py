"""Making Headroom known to a cloud's Keystone: service, endpoints, user, roles (docs/limes.md).

What is there already stays as it is, so registering twice writes nothing the second time. A dry run
goes the same way and leaves out the writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from keystoneauth1.exceptions import ClientException
from openstack.connection import Connection
from openstack.exceptions import SDKException

from hosts.clients.listing import IDENTITY, CloudUnreachable

SERVICE_NAME: Final = "headroom"
INTERFACES: Final = ("public", "internal")
ADMIN, LIQUID_ADMIN, LIQUID_VIEWER = "admin", "cloud_resource_admin", "cloud_resource_viewer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What Keystone should know.

    Attributes:
        services: Type in the catalog and address of each API: ``liquid-headroom`` ends in
            ``/commitments/``, ``capacity`` is what ``/api/v1`` is below.
        region: Of the endpoints.
        user: Our user, made with the password when it is missing; it keeps the one that it has.
        password: Asked for when the user has to be made.
        project: Project of the login.
        domain: Of user and project.
        limes_user: Limes' user, which gets the role to change commitments; empty for none.
    """

    services: Mapping[str, str]
    region: str
    user: str
    password: Callable[[], str]
    project: str = "service"
    domain: str = "Default"
    limes_user: str = ""


def register(connection: Connection, wanted: Registration, *, is_dry: bool) -> list[str]:
    """Make what is missing; return what was missing, in words.

    Raises:
        CloudUnreachable: Keystone refuses, or somebody who has to be there is not.
    """
    try:
        return list(_missing(connection.identity, wanted, is_dry=is_dry))
    except (SDKException, ClientException) as error:
        raise CloudUnreachable(f"{IDENTITY}: {error}", service=IDENTITY) from error


def _missing(
    identity: Any,  # Any: the library has no types
    wanted: Registration,
    *,
    is_dry: bool,
) -> Iterator[str]:
    for service_type, url in wanted.services.items():
        yield from _endpoints(identity, service_type, url, region=wanted.region, is_dry=is_dry)
    domain = identity.find_domain(wanted.domain, ignore_missing=False)
    project = identity.find_project(wanted.project, domain_id=domain.id, ignore_missing=False)
    user = identity.find_user(wanted.user, domain_id=domain.id)
    if user is None:
        yield f"user {wanted.user} in domain {wanted.domain}"
        if not is_dry:
            user = identity.create_user(
                name=wanted.user, domain_id=domain.id, password=wanted.password()
            )
    needed = [(wanted.user, user, name) for name in (ADMIN, LIQUID_VIEWER)]
    if wanted.limes_user:
        limes = identity.find_user(wanted.limes_user, domain_id=domain.id, ignore_missing=False)
        needed.append((wanted.limes_user, limes, LIQUID_ADMIN))
    for name, who, role_name in needed:
        role = identity.find_role(role_name)
        if role is None:
            yield f"role {role_name}"
            role = None if is_dry else identity.create_role(name=role_name)
        if role and who and _has_role(identity, project, who, role):
            continue
        yield f"role {role_name} of user {name} in project {wanted.project}"
        if not is_dry:
            identity.assign_project_role_to_user(project, who, role)


def _endpoints(
    identity: Any,  # Any: the library has no types
    service_type: str,
    url: str,
    *,
    region: str,
    is_dry: bool,
) -> Iterator[str]:
    service: Any = next(iter(identity.services(type=service_type)), None)  # Any: as above
    if service is None:
        yield f"service {SERVICE_NAME} of type {service_type}"
        if not is_dry:
            service = identity.create_service(type=service_type, name=SERVICE_NAME)
    known: dict[str, Any] = {}
    if service is not None:
        listed = identity.endpoints(service_id=service.id, region_id=region)
        known = {one.interface: one for one in listed}
    for interface in INTERFACES:
        endpoint = known.get(interface)
        if endpoint is not None and endpoint.url == url:
            continue
        was = "" if endpoint is None else f", in place of {endpoint.url}"
        yield f"{interface} endpoint {url} in region {region}{was}"
        if is_dry:
            continue
        if endpoint is not None:
            identity.update_endpoint(endpoint, url=url)
        else:
            identity.create_endpoint(
                service_id=service.id,
                interface=interface,
                region_id=region,
                url=url,
            )


def _has_role(identity: Any, project: Any, user: Any, role: Any) -> bool:  # Any: as above
    found = identity.role_assignments(scope_project_id=project.id, user_id=user.id, role_id=role.id)
    return next(iter(found), None) is not None
