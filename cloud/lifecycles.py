"""A host leaves the cloud for good, and comes again as a new one, as Nova is asked to do it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg

from cloud.api import CallError
from cloud.bringup import start_computes
from cloud.feed import TEST_AGGREGATE, Feed, feed_variables
from cloud.layout import Layout, compute_hosts
from cloud.region import manage

TRAIT: Final = "CUSTOM_BROUGHT_IN"
#: Nova believes a nova-compute for two minutes after its last report.
_PATIENCE_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.5

_UNUSED: Final = """
SELECT host.service_host, host.provider_uuid FROM hosts_host AS host
 WHERE host.service_host = ANY (%s) AND host.state = 'up' AND host.status = 'enabled'
   AND NOT EXISTS (SELECT FROM hosts_instance AS vm WHERE vm.host_id = host.id)
   AND NOT EXISTS (SELECT FROM capacity_reservation AS held
                    WHERE held.target_host_id = host.id OR held.confirmed_host_id = host.id)
 ORDER BY host.name DESC LIMIT 1
"""
_STANDS: Final = """
SELECT phase, waits_for, trouble, tests FROM hosts_hostlifecycle
 WHERE host_name = %s AND kind = %s ORDER BY id DESC LIMIT 1
"""
_HOST: Final = "SELECT conditions, status FROM hosts_host WHERE service_host = %s"


def _leaves(feed: Feed) -> str:
    """Take a host out for good: its nova-compute is stopped, the rest is Headroom's."""
    rows = _rows(feed, _UNUSED, _general(feed.layout))
    if not rows:
        raise CallError("every host holds something")
    host, provider = rows[0]
    feed.leaving = str(host)
    name = feed.name_of(host)
    feed.order("termination", name)
    _until(feed, f"{name} waits for its nova-compute", lambda: "nova-compute" in _told(feed, name))
    feed.processes.stop_compute(host)
    began = time.monotonic()
    _until(feed, f"{name} is gone", lambda: not _rows(feed, _HOST, host))
    _until(feed, f"{name} left", lambda: _phase(feed, name, "out") == "succeeded")
    seconds = time.monotonic() - began
    left = [one["host"] for one in feed.api.compute_services() if one["host"] == host]
    if left or provider in feed.api.providers().values() or _aggregates_of(feed, host):
        raise CallError(f"Nova or Placement still has {host}")
    return f"{name}: no service, provider and aggregate {seconds:.0f} s after it stopped"


def _comes(feed: Feed) -> str:
    """Start the same nova-compute as a new one that takes no servers, and bring it in."""
    host = feed.leaving
    for compute in (feed.layout.state / "computes").rglob("compute_id"):
        if compute.parent.name == host:
            compute.unlink()  # as one that was installed anew
    start_computes(feed.layout, feed.processes, [host])
    service = next(one for one in feed.api.compute_services() if one["host"] == host)
    feed.api.nova("PUT", f"/os-services/{service['id']}", {"status": "disabled"})
    feed.api.nova("POST", "/os-aggregates", {"aggregate": {"name": TEST_AGGREGATE}})
    _until(feed, f"{host} is listed", lambda: _rows(feed, _HOST, host))
    name = feed.name_of(host)
    plan = next(one for one in compute_hosts(feed.layout.host_count) if one.name == host)
    aggregates = (plan.zone, f"shape-{plan.shape_name}")
    began = time.monotonic()
    words = [part for one in aggregates for part in ("--aggregate", one)]
    env = {**feed.environ, **feed_variables(feed.layout)}
    manage(
        feed.layout, env, "onboard_host", name, *words, "--trait", TRAIT, "--reason", "a new one"
    )
    _until(feed, f"{name} is brought in", lambda: _phase(feed, name, "in") == "succeeded")
    seconds = time.monotonic() - began
    if set(_aggregates_of(feed, host)) != set(aggregates) or not feed.is_enabled(host):
        raise CallError(f"{host} is in {_aggregates_of(feed, host)}")
    provider = feed.api.providers()[host]
    if TRAIT not in feed.api.placement("GET", f"/resource_providers/{provider}/traits")["traits"]:
        raise CallError(f"{host} lacks {TRAIT}")
    _until(feed, "no server is left", lambda: not feed.api.servers())
    _until(feed, f"{name} serves", lambda: _rows(feed, _HOST, host)[0][1] == "enabled")
    ((_, _, _, tests),) = _rows(feed, _STANDS, name, "in")
    return f"{name} serves {seconds:.0f} s after it was ordered, {tests} test VM; {feed.sums()}"


def _general(layout: Layout) -> list[str]:
    return [one.name for one in compute_hosts(layout.host_count) if one.shape_name == "general"]


def _aggregates_of(feed: Feed, host: str) -> list[str]:
    listed = feed.api.nova("GET", "/os-aggregates")["aggregates"]
    return [one["name"] for one in listed if host in one["hosts"]]


def _phase(feed: Feed, name: str, kind: str) -> str:
    rows = _rows(feed, _STANDS, name, kind)
    return str(rows[0][0]) if rows else ""


def _told(feed: Feed, name: str) -> str:
    return " ".join(str(part) for row in _rows(feed, _STANDS, name, "out") for part in row)


def _rows(feed: Feed, query: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(feed.environ["DATABASE_URL"], autocommit=True) as connection:
        return connection.execute(query.encode(), values).fetchall()


def _until(feed: Feed, what: str, is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            stands = _rows(
                feed,
                "SELECT host_name, kind, phase, waits_for, trouble FROM "
                "hosts_hostlifecycle ORDER BY id",
            )
            raise CallError(f"it is not so that {what}: {stands}")
        time.sleep(_POLL_SECONDS)


LIFECYCLE_STEPS: Final[Mapping[str, Callable[[Feed], str]]] = {
    "a host leaves for good": _leaves,
    "a host is brought in": _comes,
}
