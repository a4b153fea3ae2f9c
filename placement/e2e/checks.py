"""The checks and their order (spec placement, 8.9).

Everything that they make has a fixed name, and is removed before and after each check: what an
interrupted run left behind is gone with the next one. Two runs at once disturb each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from core.server_checks.results import CheckEnd, CheckFailed, CheckResult
from placement.e2e.client import PlacementServer

ROOT: Final = "e2e10000-0000-0000-0000-000000000001"
CHILD: Final = "e2e10000-0000-0000-0000-000000000002"
NOBODY: Final = "e2e10000-0000-0000-0000-000000000009"
FIRST: Final = "e2e20000-0000-0000-0000-000000000001"
SECOND: Final = "e2e20000-0000-0000-0000-000000000002"
AGGREGATE: Final = "e2e30000-0000-0000-0000-000000000001"
ROOT_NAME: Final = "cortex-e2e-test-rp"
RENAMED: Final = "cortex-e2e-test-rp-renamed"
CHILD_NAME: Final = "cortex-e2e-test-rp-child"
CLASS: Final = "CUSTOM_CORTEX_E2E_RC"
TRAIT: Final = "CUSTOM_CORTEX_E2E_TRAIT"
PROJECT: Final = "cortex-e2e-test-project"
USER: Final = "cortex-e2e-test-user"
TOTAL: Final = 8
TAKEN: Final = 3

OK: Final = (200,)
CREATED: Final = (201,)
DONE: Final = (204,)
BAD: Final = (400,)
NOT_FOUND: Final = (404,)
CONFLICT: Final = (409,)
REMOVED: Final = (204, 404)
REFUSED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
PASSTHROUGH: Final = "passthrough"
#: A provider of one side cannot be a parent on the other, where nobody knows it.
NO_PARENT: Final = (400, 409)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementResult(CheckResult):
    """How a check in a mode ended; it is empty where the server chose."""

    mode: str


class Skipped(Exception):  # noqa: N818 - the outcome of a check
    """The server does not have what a check is about; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A server that is being checked.

    Attributes:
        host: UUID of a host's provider that may be tried as well; empty if there is none.
    """

    server: PlacementServer
    host: str = ""

    @property
    def own_host(self) -> str:
        """The host's provider where it is Headroom that answers for it."""
        return "" if self.server.mode == PASSTHROUGH else self.host

    def get(self, path: str) -> Any:
        """Return what is at a path."""
        return self.server.expect(OK, "GET", path)

    def put(self, path: str, body: object = None, statuses: tuple[int, ...] = OK) -> Any:
        """Write what is at a path."""
        return self.server.expect(statuses, "PUT", path, body)

    def post(self, path: str, body: object, statuses: tuple[int, ...] = OK) -> Any:
        """Send something to a path."""
        return self.server.expect(statuses, "POST", path, body)

    def delete(self, path: str, statuses: tuple[int, ...] = DONE) -> None:
        """Delete what is at a path."""
        self.server.expect(statuses, "DELETE", path)

    def is_absent(self, path: str) -> None:
        """Look that nothing is at a path."""
        self.server.expect(NOT_FOUND, "GET", path)

    def make_provider(self, uuid: str = ROOT, name: str = ROOT_NAME, **fields: str) -> None:
        """Create a provider."""
        made = self.post("/resource_providers", {"name": name, "uuid": uuid, **fields})
        _same("the new provider", (made.get("uuid"), made.get("name")), (uuid, name))

    def make_stocked_provider(self) -> None:
        """Create a provider, a custom class, and :data:`TOTAL` of it there."""
        self.make_provider()
        self.put(f"/resource_classes/{CLASS}", statuses=CREATED)
        self.put(_of(ROOT, "inventories"), _inventories(self.generation()))

    def generation(self, uuid: str = ROOT) -> int:
        """Return the generation of a provider."""
        return int(self.get(_of(uuid))["generation"])

    def clear(self) -> None:
        """Remove everything that checks make.

        Raises:
            CheckFailed: Something cannot be removed.
        """
        for consumer in (FIRST, SECOND):
            self.delete(f"/allocations/{consumer}", REMOVED)
        for provider in (CHILD, ROOT):
            self.delete(_of(provider), REMOVED)
        self.delete(f"/resource_classes/{CLASS}", REMOVED)
        self.delete(f"/traits/{TRAIT}", REMOVED)


def check_root(checked: Checked) -> None:
    """The version document has id, min and max."""
    (version,) = checked.get("/")["versions"]
    for name in ("id", "min_version", "max_version"):
        if not version.get(name):
            raise CheckFailed(f"GET /: {name} is missing")


def check_providers(checked: Checked) -> None:
    """A provider of nobody's lives and ends; one of a host cannot be taken away from it."""
    checked.make_provider()
    _same("its name", checked.get(_of(ROOT))["name"], ROOT_NAME)
    for query in (f"name={ROOT_NAME}", f"uuid={ROOT}"):
        _same(f"providers of {query}", _listed(checked, query), [ROOT])
    _same("the new name", checked.put(_of(ROOT), {"name": RENAMED})["name"], RENAMED)
    checked.post("/resource_providers", {"name": RENAMED, "uuid": CHILD}, CONFLICT)
    checked.delete(_of(ROOT))
    checked.is_absent(_of(ROOT))
    if host := checked.own_host:
        checked.make_provider()
        _check_host(checked, host)


def _check_host(checked: Checked, host: str) -> None:
    name = checked.get(_of(host))["name"]
    _same(f"providers of uuid={host}", _listed(checked, f"uuid={host}"), [host])
    checked.put(_of(host), {"name": RENAMED}, CONFLICT)
    checked.put(_of(host), {"name": name, "parent_provider_uuid": ROOT}, NO_PARENT)
    checked.delete(_of(host), CONFLICT)
    checked.post("/resource_providers", {"name": name, "uuid": CHILD}, CONFLICT)
    checked.post("/resource_providers", {"name": CHILD_NAME, "uuid": host}, CONFLICT)


def check_inventories(checked: Checked) -> None:
    """Inventories of a custom class are written as a whole and one by one."""
    checked.make_stocked_provider()
    path = _of(ROOT, "inventories")
    _same("the total", checked.get(path)["inventories"][CLASS]["total"], TOTAL)
    before = checked.generation()
    one = checked.put(
        f"{path}/{CLASS}", {"resource_provider_generation": before, "total": 2 * TOTAL}
    )
    _same("the new total", one["total"], 2 * TOTAL)
    checked.put(path, _inventories(before), CONFLICT)
    checked.delete(f"{path}/{CLASS}")
    _same("inventories", checked.get(path)["inventories"], {})
    checked.put(path, _inventories(checked.generation()))
    checked.delete(path)
    _same("inventories", checked.get(path)["inventories"], {})


def check_provider_traits(checked: Checked) -> None:
    """A provider gets a custom trait and loses it; a host's provider keeps those that it had."""
    checked.put(f"/traits/{TRAIT}", statuses=CREATED)
    checked.make_provider()
    path = _of(ROOT, "traits")
    before = checked.generation()
    checked.put(path, _traits([TRAIT], before))
    _same("traits", checked.get(path)["traits"], [TRAIT])
    checked.put(path, _traits([], before), CONFLICT)
    checked.delete(path)
    _same("traits", checked.get(path)["traits"], [])
    if host := checked.own_host:
        _check_host_traits(checked, _of(host, "traits"))


def _check_host_traits(checked: Checked, path: str) -> None:
    had = checked.get(path)
    traits = sorted(set(had["traits"]) - {TRAIT})
    try:
        checked.put(path, _traits([*traits, TRAIT], had["resource_provider_generation"]))
        _same("traits of the host", sorted(checked.get(path)["traits"]), sorted([*traits, TRAIT]))
    finally:
        now = checked.get(path)["resource_provider_generation"]
        checked.put(path, _traits(traits, now))
    _same("traits of the host", sorted(checked.get(path)["traits"]), traits)


def check_provider_aggregates(checked: Checked) -> None:
    """A provider joins an aggregate and leaves it."""
    checked.make_provider()
    path = _of(ROOT, "aggregates")
    before = checked.generation()
    checked.put(path, _aggregates([AGGREGATE], before))
    _same("aggregates", checked.get(path)["aggregates"], [AGGREGATE])
    checked.put(path, _aggregates([], before), CONFLICT)
    checked.put(path, _aggregates([], checked.generation()))
    _same("aggregates", checked.get(path)["aggregates"], [])


def check_provider_usages(checked: Checked) -> None:
    """What a provider is used for is nothing, and after an allocation that."""
    checked.make_stocked_provider()
    _same("allocations", checked.get(_of(ROOT, "allocations"))["allocations"], {})
    _same("usages", checked.get(_of(ROOT, "usages"))["usages"], {CLASS: 0})
    checked.put(f"/allocations/{FIRST}", _claim({ROOT: TAKEN}), DONE)
    held = checked.get(_of(ROOT, "allocations"))["allocations"]
    _same("consumers", sorted(held), [FIRST])
    _same("what it holds", held[FIRST]["resources"], {CLASS: TAKEN})
    _same("usages", checked.get(_of(ROOT, "usages"))["usages"], {CLASS: TAKEN})


def check_traits(checked: Checked) -> None:
    """A custom trait lives and ends."""
    _check_name(checked, f"/traits/{TRAIT}", "/traits/not-custom")
    checked.put(f"/traits/{TRAIT}", statuses=CREATED)
    listed = checked.get(f"/traits?name=in:{TRAIT}")["traits"]
    _same("traits", listed, [TRAIT])
    checked.delete(f"/traits/{TRAIT}")


def check_classes(checked: Checked) -> None:
    """A custom resource class lives and ends."""
    path = f"/resource_classes/{CLASS}"
    _check_name(checked, path, "/resource_classes/not-custom")
    checked.put(path, statuses=CREATED)
    _same("its name", checked.get(path)["name"], CLASS)
    names = [one["name"] for one in checked.get("/resource_classes")["resource_classes"]]
    if CLASS not in names or "VCPU" not in names:
        raise CheckFailed(f"GET /resource_classes: lacks {CLASS} or VCPU")
    checked.delete(path)


def _check_name(checked: Checked, path: str, bad_path: str) -> None:
    checked.put(path, statuses=CREATED)
    checked.put(path, statuses=DONE)
    checked.server.expect((200, 204), "GET", path)
    checked.delete(path)
    checked.is_absent(path)
    checked.put(bad_path, statuses=BAD)


def check_allocations(checked: Checked) -> None:
    """Consumers get and give back; more than there is is refused."""
    checked.make_stocked_provider()
    checked.put(f"/allocations/{FIRST}", _claim({ROOT: TAKEN}), DONE)
    held = checked.get(f"/allocations/{FIRST}")
    _same("what it holds", held["allocations"][ROOT]["resources"], {CLASS: TAKEN})
    both = {
        FIRST: _claim({ROOT: 1}, held["consumer_generation"]),
        SECOND: _claim({ROOT: TAKEN}),
    }
    checked.post("/allocations", both, DONE)
    _same("usages", checked.get(_of(ROOT, "usages"))["usages"], {CLASS: TAKEN + 1})
    generation = checked.get(f"/allocations/{SECOND}")["consumer_generation"]
    checked.put(f"/allocations/{SECOND}", _claim({ROOT: TOTAL}, generation), CONFLICT)
    for consumer in (FIRST, SECOND):
        checked.delete(f"/allocations/{consumer}")
        _same("allocations", checked.get(f"/allocations/{consumer}")["allocations"], {})


def check_candidates(checked: Checked) -> None:
    """A provider with a custom class is found for what it has, and not for more."""
    checked.make_stocked_provider()
    _same("candidates", _candidates(checked, TOTAL), [[ROOT]])
    _same("candidates for too much", _candidates(checked, TOTAL + 1), [])


def _candidates(checked: Checked, amount: int) -> list[list[str]]:
    found = checked.get(f"/allocation_candidates?resources={CLASS}:{amount}")
    return [sorted(one["allocations"]) for one in found["allocation_requests"]]


def check_reshaper(checked: Checked) -> None:
    """A class and what is allocated of it move to a child."""
    checked.make_stocked_provider()
    checked.make_provider(CHILD, CHILD_NAME, parent_provider_uuid=ROOT)
    checked.put(f"/allocations/{FIRST}", _claim({ROOT: TAKEN}), DONE)
    generation = checked.get(f"/allocations/{FIRST}")["consumer_generation"]
    moved = {
        "inventories": {
            ROOT: {"resource_provider_generation": checked.generation(), "inventories": {}},
            CHILD: _inventories(checked.generation(CHILD)),
        },
        "allocations": {FIRST: _claim({CHILD: TAKEN}, generation)},
    }
    checked.post("/reshaper", moved, DONE)
    _same("inventories", checked.get(_of(ROOT, "inventories"))["inventories"], {})
    _same("usages of the child", checked.get(_of(CHILD, "usages"))["usages"], {CLASS: TAKEN})


def check_usages(checked: Checked) -> None:
    """What a project uses is nothing, and after an allocation that."""
    checked.make_stocked_provider()
    path = f"/usages?project_id={PROJECT}"
    _same("usages", checked.get(path)["usages"], {})
    checked.put(f"/allocations/{FIRST}", _claim({ROOT: TAKEN}), DONE)
    _same("usages", checked.get(path)["usages"], {CLASS: TAKEN})


Check = Callable[[Checked], None]
#: Name, what to ask first (501 is: not there), and the check.
CHECKS: Final[tuple[tuple[str, str, Check], ...]] = (
    ("root", "GET /", check_root),
    ("resource_providers", f"GET /resource_providers?uuid={NOBODY}", check_providers),
    ("inventories", f"GET /resource_providers/{NOBODY}/inventories", check_inventories),
    ("provider_traits", f"GET /resource_providers/{NOBODY}/traits", check_provider_traits),
    (
        "provider_aggregates",
        f"GET /resource_providers/{NOBODY}/aggregates",
        check_provider_aggregates,
    ),
    ("provider_usages", f"GET /resource_providers/{NOBODY}/usages", check_provider_usages),
    ("traits", "GET /traits?name=in:HW_CPU_X86_AVX", check_traits),
    ("resource_classes", "GET /resource_classes/VCPU", check_classes),
    ("allocations", f"GET /allocations/{FIRST}", check_allocations),
    (
        "allocation_candidates",
        "GET /allocation_candidates?resources=VCPU:1&limit=1",
        check_candidates,
    ),
    ("reshaper", "POST /reshaper", check_reshaper),
    ("usages", f"GET /usages?project_id={PROJECT}", check_usages),
)


def run_checks(checked: Checked) -> Iterator[PlacementResult]:
    """Run every check in order and yield its result as soon as it is known."""
    for name, probe, check in CHECKS:
        outcome, detail = CheckEnd.PASSED, ""
        try:
            _look_first(checked.server, *probe.split(" "))
            _run(checked, check)
        except Skipped as error:
            outcome, detail = CheckEnd.SKIPPED, str(error)
        except CheckFailed as error:
            outcome, detail = CheckEnd.FAILED, str(error)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            outcome = CheckEnd.FAILED
            detail = f"an answer has another form: {type(error).__name__}: {error}"
        mode = checked.server.mode
        yield PlacementResult(check=name, mode=mode, outcome=outcome, detail=detail)


def _look_first(server: PlacementServer, method: str, path: str) -> None:
    """Raise unless the server answers such requests, in the mode that is asked for."""
    answer = server.send(method, path, {} if method == "POST" else None)
    if answer.status == HTTPStatus.NOT_IMPLEMENTED:
        raise Skipped(f"{method} {path.partition('?')[0]}: status 501")
    if answer.status in REFUSED:
        raise CheckFailed(f"{method} {path}: status {answer.status}: {answer.text}")
    if server.mode != answer.mode:
        raise Skipped("the server does not take this mode: see docs/gateway.md, checks")


def _run(checked: Checked, check: Check) -> None:
    """Run a check between two cleanings.

    Raises:
        CheckFailed: It failed, or cannot clean up; what failed first is told.
    """
    checked.clear()
    try:
        check(checked)
    except Exception:
        with suppress(CheckFailed):
            checked.clear()
        raise
    checked.clear()


def _same(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise CheckFailed(f"{what}: {found!r} instead of {wanted!r}")


def _of(uuid: str, part: str = "") -> str:
    return f"/resource_providers/{uuid}" + (f"/{part}" if part else "")


def _listed(checked: Checked, query: str) -> list[str]:
    found = checked.get(f"/resource_providers?{query}")["resource_providers"]
    return [one["uuid"] for one in found]


def _inventories(generation: int) -> Mapping[str, Any]:
    return {
        "resource_provider_generation": generation,
        "inventories": {CLASS: {"total": TOTAL}},
    }


def _traits(names: list[str], generation: int) -> Mapping[str, Any]:
    return {"resource_provider_generation": generation, "traits": names}


def _aggregates(uuids: list[str], generation: int) -> Mapping[str, Any]:
    return {"resource_provider_generation": generation, "aggregates": uuids}


def _claim(amounts: Mapping[str, int], generation: int | None = None) -> Mapping[str, Any]:
    return {
        "allocations": {uuid: {"resources": {CLASS: amount}} for uuid, amount in amounts.items()},
        "project_id": PROJECT,
        "user_id": USER,
        "consumer_generation": generation,
    }
