"""Checks of a live cloud: addresses, versions, rights, clocks (``manage.py doctor``).

What to read and what it takes stands in :data:`SERVICES`; the judging knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from django.conf import settings

from core.doctor.findings import Check, Finding, broken, doubtful, fine
from core.doctor.own import compared
from hosts.clients.cloud import MICROVERSIONS, VERSIONS
from hosts.clients.cloud_probe import (
    TIMEOUT_SECONDS,
    CloudProbe,
    Look,
    configured_cloud,
    named_cloud,
)
from hosts.clients.listing import COMPUTE, IDENTITY, IMAGE, LIMES, PLACEMENT
from journal.clock import followed_clock

OK: Final = 200
REFUSED: Final = (401, 403)
ADMIN: Final = "admin"
LIQUID: Final = "liquid-"
INFO: Final = "/v1/info"
NOT_LOOKED_AT: Final = doubtful("not looked at: there is no login", "see the check cloud login")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A list that has to be read.

    Attributes:
        path: Its path, for one element.
        key: Of the list in the body.
        rule: Rule of the service's policy that has to let us in.
        fields: What the elements lack when another rule keeps it from us, with that rule.
        hidden: What is null in each of them when another rule keeps it from us.
        hidden_by: That rule.
        harm: What follows from that.
    """

    path: str
    key: str
    rule: str
    fields: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    hidden_by: str = ""
    harm: str = ""


#: What the feed reads of each service.
SERVICES: Final[Mapping[str, tuple[Wanted, ...]]] = {
    IDENTITY: (
        Wanted(path="/domains?limit=1", key="domains", rule="identity:list_domains"),
        Wanted(path="/projects?limit=1", key="projects", rule="identity:list_projects"),
    ),
    COMPUTE: (
        Wanted(
            path="/os-hypervisors/detail?limit=1",
            key="hypervisors",
            rule="os_compute_api:os-hypervisors:list-detail",
        ),
        Wanted(path="/os-services", key="services", rule="os_compute_api:os-services:list"),
        Wanted(path="/os-aggregates", key="aggregates", rule="os_compute_api:os-aggregates:index"),
        Wanted(
            path="/flavors/detail?is_public=None&limit=1",
            key="flavors",
            rule="os_compute_api:os-flavor-extra-specs:index",
            fields={"extra_specs": "os_compute_api:os-flavor-extra-specs:index"},
        ),
        Wanted(
            path="/servers/detail?all_tenants=1&limit=1",
            key="servers",
            rule="os_compute_api:servers:detail:get_all_tenants",
            fields={
                "OS-EXT-SRV-ATTR:hypervisor_hostname": (
                    "os_compute_api:os-extended-server-attributes"
                )
            },
        ),
        Wanted(
            path="/os-migrations?limit=20",
            key="migrations",
            rule="os_compute_api:os-migrations:index",
            hidden=("source_compute", "source_node", "dest_compute", "dest_node"),
            hidden_by="os_compute_api:os-migrations:index:host",
            harm="room of VMs on their way is not held",
        ),
        Wanted(
            path="/os-server-groups?all_projects=True&limit=1",
            key="server_groups",
            rule="os_compute_api:os-server-groups:index:all_projects",
        ),
    ),
    IMAGE: (Wanted(path="/images?limit=1", key="images", rule="get_images"),),
    PLACEMENT: (
        Wanted(
            path="/resource_providers?name=nobody",
            key="resource_providers",
            rule="placement:resource_providers:list",
        ),
    ),
}

#: What a service shows to its administrators alone, whatever rules others pass.
HIDDEN: Final[Mapping[str, str]] = {
    COMPUTE: "flavors that are not public and server groups of other projects",
    IMAGE: "images of other projects that are not public",
}


def cloud_checks(connect: Callable[[], CloudProbe]) -> dict[str, Check]:
    """Return the checks of a cloud by name.

    Args:
        connect: Logs in; called once for all checks that follow.
    """
    known: list[CloudProbe] = []

    def login() -> Iterator[Finding]:
        known[:] = [connect()]
        yield from _check_login(known[0])

    def logged_in(check: Callable[[CloudProbe], Iterator[Finding]]) -> Check:
        return lambda: check(known[0]) if known else (NOT_LOOKED_AT,)

    return {
        "cloud login": login,
        **{f"cloud {name}": logged_in(partial(_check_service, name)) for name in SERVICES},
        "cloud limes": logged_in(_check_limes),
        "cloud liquid": logged_in(_check_liquid),
    }


def configured_checks() -> dict[str, Check]:
    """Return the checks of the cloud that our settings name; none without one.

    Lists are looked at with the rights of the user who reads them for the feed.
    """
    feed_cloud, has_login = settings.HEADROOM.feed.cloud, settings.HEADROOM.keystone.is_complete
    if not feed_cloud:
        return cloud_checks(configured_cloud) if has_login else {}
    checks = cloud_checks(partial(named_cloud, feed_cloud, timeout_seconds=TIMEOUT_SECONDS))
    if has_login:
        checks["cloud service login"] = lambda: _check_login(configured_cloud())
    return checks


def _check_login(cloud: CloudProbe) -> Iterator[Finding]:
    roles = cloud.roles
    if roles:
        yield fine(f"the token has the roles {', '.join(roles)}")
    else:
        yield broken("the token has no role", "give the user a role in the project of its login")


def _check_service(service: str, cloud: CloudProbe) -> Iterator[Finding]:
    address, version = cloud.address(service), VERSIONS.get(service)
    if not address:
        yield broken(f"Keystone's catalog has no address of {service}", "register the service")
        return
    has_version = address.rstrip("/").endswith(f"/{version}")
    form = (
        f" ({'with' if has_version else 'without'} /{version}, either will do)" if version else ""
    )
    yield fine(f"the catalog has {address}{form}")
    if service in MICROVERSIONS:
        yield version_finding(service, cloud.microversions(service))
    look: Look | None = None
    for wanted in SERVICES[service]:
        look = cloud.look(service, wanted.path)
        yield list_finding(wanted, look.status, look.body)
    if service in HIDDEN and ADMIN not in cloud.roles:
        yield doubtful(
            f"without the role {ADMIN} our user does not see {HIDDEN[service]}",
            "docs/feed.md, What its user may do",
        )
    if look is not None and look.ahead is not None:
        yield compared(f"the machine of {service}", look.ahead + followed_clock.deviation())


def version_finding(service: str, offered: tuple[str, str]) -> Finding:
    """Judge the microversions that a service offers."""
    needed = MICROVERSIONS[service]
    first, last = offered
    if not last:
        return doubtful(f"no microversion is told, {needed} is needed", "see that it answers at /")
    told = f"microversions {first} to {last}, {needed} is needed"
    if _numbers(first) <= _numbers(needed) <= _numbers(last):
        return fine(told)
    return broken(told, "upgrade the service")


def list_finding(wanted: Wanted, status: int, body: Any) -> Finding:  # Any: JSON
    """Judge the answer to a list."""
    name = wanted.path.partition("?")[0]
    if status in REFUSED:
        return broken(f"{name}: status {status}", f"let our user pass the rule {wanted.rule}")
    elements = body.get(wanted.key) if isinstance(body, dict) else None
    if status != OK or not isinstance(elements, list):
        return broken(f"{name}: status {status}, no list", "see the log of the service")
    for key, rule in wanted.fields.items():
        if elements and key not in elements[0]:
            return broken(f"{name}: without {key}", f"let our user pass the rule {rule}")
    if elements and wanted.hidden and not _are_told(wanted.hidden, elements):
        return broken(
            f"{name}: without {wanted.hidden[0]}, {wanted.harm}",
            f"let our user pass the rule {wanted.hidden_by}",
        )
    return fine(f"{name}: can be read" + ("" if elements else "; it is empty"))


def _are_told(keys: Iterable[str], elements: Iterable[Any]) -> bool:  # Any: JSON
    return any(one.get(key) is not None for one in elements for key in keys)


def _check_limes(cloud: CloudProbe) -> Iterator[Finding]:
    address = cloud.address(LIMES)
    if address:
        yield fine(f"the catalog has {address}")
        return
    yield doubtful(
        f"the catalog has no service {LIMES}: commitments cannot be read from Limes",
        "docs/limes.md; without Limes nothing is to do",
    )


def _check_liquid(cloud: CloudProbe) -> Iterator[Finding]:
    found = [kind for kind in cloud.service_types if kind.startswith(LIQUID)]
    named = [kind for kind in found if "/commitments" in cloud.address(kind)]
    if not named:
        yield doubtful(
            f"no service {LIQUID}... of the catalog leads to /commitments: Limes cannot find us",
            "./run manage connect --register --liquid-url https://...",
        )
    for kind in named:
        status = cloud.look(kind, INFO).status
        told = f"{kind} at {cloud.address(kind)}: status {status} for {INFO}"
        if status == OK:
            yield fine(told)
        else:
            yield broken(told, "see docs/limes.md, When it does not work")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
