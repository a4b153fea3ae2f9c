"""Everything Nova does with Placement, step by step, each checked against what Headroom says."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cloud.api import Api, CallError, host_of, in_parallel
from cloud.bringup import ask_outside, stopped_compute
from cloud.catalog import IMAGE
from cloud.claims import ASKED_STEPS, COMMITTED_STEPS, Claims
from cloud.feed import FEED_STEPS, Feed
from cloud.layout import FLAVORS, PROJECTS, ZONES, FlavorPlan, Layout
from cloud.lifecycles import LIFECYCLE_STEPS
from cloud.moves import MOVE_STEPS
from cloud.processes import Processes
from cloud.reader import READER_STEPS
from cloud.region import dump_and_import
from cloud.said import problems_in, said_since
from cloud.switching import FLAVOR, SWITCH_STEPS, Databases, Switching
from config.launcher.terminal import LauncherError, say

Json = Any  # bodies keep the APIs' own shapes
EXTERNAL_SERVERS = 6
HEADROOM_LOGS = ("web", "worker", "beat", "listener")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """How a step ended."""

    title: str
    is_good: bool
    text: str
    seconds: float


@dataclass(slots=True, kw_only=True)
class Exercise:
    """A running cloud and the servers that were made in it.

    Attributes:
        environ: Environment of Headroom's management commands.
        servers: Servers by id, as Nova described them last.
        databases: Headroom's, where it has a standby to switch over to.
    """

    layout: Layout
    processes: Processes
    environ: Mapping[str, str]
    server_count: int
    api: Api
    image: str = ""
    flavors: dict[str, str] = field(default_factory=dict)
    servers: dict[str, Json] = field(default_factory=dict)
    claims: Claims | None = None
    feed: Feed | None = None
    databases: Databases | None = None

    def small(self, place: int) -> Json:
        """Return one of the servers that fit on several hosts of their zone.

        Raises:
            CallError: There is none.
        """
        movable = [
            server
            for server in self.servers.values()
            if server["flavor"]["original_name"] in {"g_c2_m8", "g_c4_m16"}
        ]
        if not movable:
            raise CallError("no server was booted that could be moved")
        return movable[place % len(movable)]

    def note(self, server: Json) -> None:
        """Remember a server as it is now."""
        self.servers[server["id"]] = server


def run_exercise(exercise: Exercise) -> list[StepEnd]:
    """Run every step, also after one that failed, and return how they ended."""
    outcomes = []
    steps = STEPS if exercise.databases is None else SWITCHING_STEPS
    for title, work in steps.items():
        started = time.monotonic()
        try:
            text, is_good = work(exercise), True
        except (CallError, LauncherError) as error:
            text, is_good = str(error), False
        except (TypeError, KeyError) as error:  # of a server or host that an earlier step lacks
            text, is_good = f"needs what an earlier step did not get: {error!r}", False
        seconds = time.monotonic() - started
        outcome = StepEnd(title=title, is_good=is_good, text=text, seconds=seconds)
        say(row(outcome))
        outcomes.append(outcome)
    return outcomes


def row(outcome: StepEnd) -> str:
    """Return an outcome as a line of the table."""
    word = "ok" if outcome.is_good else "FAILED"
    return f"{word:6}  {outcome.title:34}  {outcome.seconds:6.1f} s  {outcome.text}"


def draw_flavors(count: int, seed: int = 7) -> list[FlavorPlan]:
    """Return the flavors to boot: the first of each kind, then by their weights."""
    kinds = [flavor for flavor in FLAVORS if flavor.weight]
    drawn = random.Random(seed).choices(  # noqa: S311 - no secret
        kinds, weights=[flavor.weight for flavor in kinds], k=max(0, count - len(kinds))
    )
    return (kinds + drawn)[:count]


def differences(
    server: Json, held: Mapping[str, Mapping[str, int]], providers: Mapping[str, str]
) -> str:
    """Return how a server's allocations differ from its flavor and host; empty if they do not.

    Args:
        server: As Nova describes it.
        held: Its resources by uuid of the provider.
        providers: Uuids of providers by name.
    """
    flavor = next(f for f in FLAVORS if f.name == server["flavor"]["original_name"])
    host = host_of(server)
    own = {uuid for name, uuid in providers.items() if name == host or name.startswith(f"{host}_")}
    if not held or not set(held) <= own:
        return f"{server['name']} on {host} holds room elsewhere: {dict(held)}"
    total: dict[str, int] = {}
    for resources in held.values():
        for name, amount in resources.items():
            total[name] = total.get(name, 0) + amount
    if total != dict(flavor.resources):
        return f"{server['name']} holds {total}, its flavor is {dict(flavor.resources)}"
    return ""


def _check_allocations(exercise: Exercise) -> str:
    """Compare all allocations with Nova's view.

    Raises:
        CallError: They differ.
    """
    providers = exercise.api.providers()
    found = [
        text
        for server in exercise.servers.values()
        if (text := differences(server, exercise.api.allocations(server["id"]), providers))
    ]
    if found:
        raise CallError("; ".join(found[:3]))
    return f"{len(exercise.servers)} servers hold what their flavors say"


def _boot(exercise: Exercise, plans: list[tuple[Api, str, FlavorPlan, Json]]) -> int:
    def boot(plan: tuple[Api, str, FlavorPlan, Json]) -> Json:
        api, name, flavor, hints = plan
        wanted = {
            "name": name,
            "flavorRef": exercise.flavors[flavor.name],
            "imageRef": exercise.image,
        }
        server_id = api.boot(wanted, hints)
        return api.wait(server_id, "ACTIVE")

    for server in in_parallel(boot, plans):
        exercise.note(server)
    return len(plans)


def _providers(exercise: Exercise) -> str:
    failed = [
        log.stem
        for log in sorted(exercise.layout.logs.glob("compute-*.log"))
        if any("Error updating resources" in line for line in said_since(log))
    ]
    if failed:
        raise CallError(f"failed to report its resources: {', '.join(failed)}")
    providers = exercise.api.providers()
    without = [
        name
        for name, uuid in providers.items()
        if not exercise.api.placement("GET", f"/resource_providers/{uuid}/inventories")[
            "inventories"
        ]
    ]
    if without:
        raise CallError(f"no inventory: {', '.join(without)}")
    return f"{len(providers)} providers, all with inventories"


def _boots(exercise: Exercise) -> str:
    api = exercise.api
    exercise.image = api.connection.image.find_image(IMAGE).id
    listed = api.nova("GET", "/flavors/detail?is_public=None")["flavors"]
    exercise.flavors = {flavor["name"]: flavor["id"] for flavor in listed}
    names = [(project, domain) for domain, projects in PROJECTS.items() for project in projects]
    apis = [Api(exercise.layout, project, domain) for project, domain in names]
    policy = {"name": "apart", "policy": "anti-affinity", "rules": {"max_server_per_host": 1}}
    group = apis[0].nova("POST", "/os-server-groups", {"server_group": policy})["server_group"]
    plans = []
    for index, flavor in enumerate(draw_flavors(exercise.server_count)):
        chosen = index % len(apis)
        hints = {"group": group["id"]} if not chosen and flavor.name == "g_c8_m32" else None
        plans.append((apis[chosen], f"{names[chosen][0]}-{index:03d}", flavor, hints))
    return f"{_boot(exercise, plans)} servers ACTIVE in {len(ZONES)} zones, {len(apis)} projects"


def _too_big(exercise: Exercise) -> str:
    wanted = {
        "name": "too-big",
        "flavorRef": exercise.flavors["huge_c4096"],
        "imageRef": exercise.image,
    }
    server_id = exercise.api.boot(wanted)
    exercise.api.wait(server_id, "ERROR")
    exercise.api.nova("DELETE", f"/servers/{server_id}")
    exercise.api.wait_gone(server_id)
    return "refused, and deleted again"


def _live_migration(exercise: Exercise) -> str:
    server = exercise.small(0)
    body = {"host": None, "block_migration": "auto"}
    exercise.api.act(server["id"], "os-migrateLive", body)
    moved = exercise.api.wait(server["id"], "ACTIVE", left=host_of(server))
    exercise.note(moved)
    return f"{host_of(server)} to {host_of(moved)}; {_check_allocations(exercise)}"


def _verified(exercise: Exercise, server: Json, action: str, body: Json, *, keep: bool) -> str:
    """Run an action that waits in VERIFY_RESIZE, then confirm or revert it."""
    exercise.api.act(server["id"], action, body)
    exercise.api.wait(server["id"], "VERIFY_RESIZE")
    exercise.api.act(server["id"], "confirmResize" if keep else "revertResize")
    after = exercise.api.wait(server["id"], "ACTIVE")
    exercise.note(after)
    text = f"{host_of(server)} to {host_of(after)}"
    return f"{text}; {_check_allocations(exercise)}"


def _cold_migration(exercise: Exercise) -> str:
    return _verified(exercise, exercise.small(1), "migrate", None, keep=True)


def _cold_migration_back(exercise: Exercise) -> str:
    return _verified(exercise, exercise.small(2), "migrate", None, keep=False)


def _resize(exercise: Exercise) -> str:
    body = {"flavorRef": exercise.flavors["g_c8_m32"]}
    return _verified(exercise, exercise.small(3), "resize", body, keep=True)


def _resize_back(exercise: Exercise) -> str:
    body = {"flavorRef": exercise.flavors["g_c8_m32"]}
    return _verified(exercise, exercise.small(4), "resize", body, keep=False)


def _shelving(exercise: Exercise) -> str:
    server = exercise.small(5)
    exercise.api.act(server["id"], "shelve")
    exercise.api.wait(server["id"], "SHELVED_OFFLOADED")
    if held := exercise.api.allocations(server["id"]):
        raise CallError(f"a shelved server holds {held}")
    exercise.api.act(server["id"], "unshelve")
    exercise.note(exercise.api.wait(server["id"], "ACTIVE"))
    return f"gave its room back meanwhile; {_check_allocations(exercise)}"


def _evacuation(exercise: Exercise) -> str:
    host = host_of(exercise.small(6))
    victims = [server for server in exercise.servers.values() if host_of(server) == host]
    with stopped_compute(exercise.layout, exercise.processes, exercise.api, host):
        for server in victims:
            exercise.note(exercise.api.evacuate(server))
    text = f"{len(victims)} servers left {host}, stopped and started again"
    return f"{text}; {_check_allocations(exercise)}"


def _region(exercise: Exercise) -> str:
    return dump_and_import(exercise.layout, exercise.environ)


def _external(exercise: Exercise) -> str:
    log = exercise.layout.logs / "nova-scheduler.log"
    before = len(said_since(log))
    ask_outside(exercise.layout, exercise.processes)
    flavor = next(f for f in FLAVORS if f.name == "g_c2_m8")
    plans = [(exercise.api, f"asked-{index}", flavor, None) for index in range(EXTERNAL_SERVERS)]
    booted = _boot(exercise, plans)
    said = said_since(log)[before:]
    asked = sum("Headroom was asked about" in line for line in said)
    failed = sum("Headroom did not answer" in line for line in said)
    if failed or asked < booted:
        raise CallError(f"{booted} boots, {asked} answers of Headroom, {failed} failures")
    return f"{booted} boots, {asked} answers of Headroom; {_check_allocations(exercise)}"


def _deletion(exercise: Exercise) -> str:
    api, everything = exercise.api, list(exercise.servers)
    for server_id in everything:
        api.nova("DELETE", f"/servers/{server_id}")
    in_parallel(api.wait_gone, everything)
    exercise.servers.clear()
    for name, uuid in api.providers().items():
        usages = api.placement("GET", f"/resource_providers/{uuid}/usages")["usages"]
        if any(usages.values()):
            raise CallError(f"{name} still holds {usages}")
    return f"{len(everything)} servers; no provider holds anything"


def _logs(exercise: Exercise) -> str:
    found = [
        f"{name}: {problem}"
        for name in HEADROOM_LOGS
        for problem in problems_in(said_since(exercise.layout.logs / f"{name}.log"))
    ]
    if found:
        raise CallError(f"{len(found)} errors in Headroom's logs: " + "; ".join(found[:3]))
    return "no error and no traceback"


def _claiming(work: Callable[[Claims], str], exercise: Exercise) -> str:
    if exercise.claims is None:
        (owner, *_), (stranger, *_) = (
            [(project, domain) for project in projects] for domain, projects in PROJECTS.items()
        )
        exercise.claims = Claims(
            layout=exercise.layout,
            processes=exercise.processes,
            database_url=exercise.environ["DATABASE_URL"],
            flavors=exercise.flavors,
            image=exercise.image,
            owner=Api(exercise.layout, *owner),
            stranger=Api(exercise.layout, *stranger),
        )
    return work(exercise.claims)


def _following(work: Callable[[Feed], str], exercise: Exercise) -> str:
    if exercise.feed is None:
        exercise.feed = Feed(
            layout=exercise.layout,
            processes=exercise.processes,
            environ=exercise.environ,
            api=exercise.api,
            flavors=exercise.flavors,
            image=exercise.image,
        )
    return work(exercise.feed)


def _claiming_steps(
    steps: Mapping[str, Callable[[Claims], str]],
) -> Mapping[str, Callable[[Exercise], str]]:
    return {title: partial(_claiming, work) for title, work in steps.items()}


def _switching(work: Callable[[Switching], str], exercise: Exercise) -> str:
    if exercise.databases is None:
        raise CallError("its database has no standby")
    switching = Switching(
        layout=exercise.layout,
        processes=exercise.processes,
        api=exercise.api,
        databases=exercise.databases,
        flavor=exercise.flavors[FLAVOR],
        image=exercise.image,
    )
    text = work(switching)
    for server in switching.servers:
        exercise.note(server)
    return f"{text}; {_check_allocations(exercise)}"


STEPS: Mapping[str, Callable[[Exercise], str]] = {
    "hosts register": _providers,
    "boot": _boots,
    "allocations": _check_allocations,
    "a server that fits nowhere": _too_big,
    "live migration": _live_migration,
    "cold migration, confirmed": _cold_migration,
    "cold migration, reverted": _cold_migration_back,
    "resize, confirmed": _resize,
    "resize, reverted": _resize_back,
    "shelve and unshelve": _shelving,
    "evacuation of a stopped compute": _evacuation,
    "region dump and import": _region,
    "deletion": _deletion,
    **_claiming_steps(COMMITTED_STEPS),
    "external scheduler asked first": _external,
    "live migration, scheduler asked": _live_migration,
    "deletion of the rest": _deletion,
    **_claiming_steps(ASKED_STEPS),
    **{
        title: partial(_following, work)
        for title, work in {
            **FEED_STEPS,
            **LIFECYCLE_STEPS,
            **MOVE_STEPS,
            **READER_STEPS,
        }.items()
    },
    "Headroom's logs": _logs,
}
SWITCHING_STEPS: Mapping[str, Callable[[Exercise], str]] = {
    "hosts register": _providers,
    "boot": _boots,
    "allocations": _check_allocations,
    **{title: partial(_switching, work) for title, work in SWITCH_STEPS.items()},
    "live migration": _live_migration,
    "deletion": _deletion,
    "Headroom's logs": _logs,
}
"""With a database that has a standby."""
