"""The least memory that full coverage needs, by integer programming (spec failover, 17.4).

Needs the optional package ``highspy`` and small zones. A slot is named by its host and its leader,
the largest of its users: a VM has at most one slot per host (rule C2), so the pair is unique, the
size of a slot is that of its leader, and the program has no sizes and few symmetries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations
from math import ceil, gcd, isfinite
from types import ModuleType

MOST_VARIABLES = 60_000
DEFAULT_SECONDS = 20.0
_ROUNDING = 1e-6
_HALF = 0.5


class SolverMissingError(RuntimeError):
    """The optional solver is not installed."""


class ZoneTooLargeError(ValueError):
    """The zone has too many VMs and hosts for an exact answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundVM:
    """A VM that slots are owed to.

    Attributes:
        host: Host it runs on.
        memory_bytes: What it takes.
        required_count: Slots it must have.
    """

    uuid: str
    host: str
    memory_bytes: int
    required_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSlot:
    """A slot of the best plan that was found.

    Attributes:
        host: Host that holds it.
        memory_bytes: Its size.
        users: Its users, in order of uuid.
    """

    host: str
    memory_bytes: int
    users: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactBound:
    """What the solver proved.

    Attributes:
        is_feasible: Whether full coverage is possible at all; False only when proven.
        is_optimal: Whether ``bound_bytes`` is reached by ``slots``.
        bound_bytes: Memory that no plan with full coverage can stay below.
        best_bytes: Memory of the best plan that was found; None without one.
        slots: That plan.
    """

    is_feasible: bool
    is_optimal: bool
    bound_bytes: int
    best_bytes: int | None
    slots: tuple[ExactSlot, ...] = ()


def has_solver() -> bool:
    """Return whether the optional solver is installed."""
    return find_spec("highspy") is not None


def exact_bound(
    vms: Sequence[BoundVM],
    room_bytes: Mapping[str, int | None],
    *,
    seconds: float = DEFAULT_SECONDS,
) -> ExactBound:
    """Return the least memory with which every VM gets its slots under the five rules.

    Args:
        vms: VMs that slots are owed to.
        room_bytes: Every host of the zone to its room for slots; None where it does not limit.
        seconds: When to stop; what is proven by then is returned.

    Raises:
        SolverMissingError: the package ``highspy`` is not installed.
        ZoneTooLargeError: the program would have more than 60,000 variables.
    """
    if not has_solver():
        raise SolverMissingError("the exact bound needs the package highspy")
    wanted = sorted(
        (vm for vm in vms if vm.required_count > 0),
        key=lambda vm: (-vm.memory_bytes, vm.uuid),
    )
    if not wanted:
        return ExactBound(is_feasible=True, is_optimal=True, bound_bytes=0, best_bytes=0)
    program = _Program(wanted, sorted(room_bytes))
    program.require_coverage()
    program.require_different_hosts()
    program.require_room(room_bytes)
    return program.solved(import_module("highspy"), seconds)


Row = tuple[float, float, Sequence[int], Sequence[float]]
_Key = tuple[int, int, str]


@dataclass(slots=True)
class _Program:
    """Variables and rows; only while one bound is computed."""

    vms: Sequence[BoundVM]
    hosts: Sequence[str]
    use: dict[_Key, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    pairs: int = 0
    unit: int = 1

    def __post_init__(self) -> None:
        """Number the variables: may VM u use the slot that VM v leads on host p."""
        self.unit = max(1, reduce(gcd, (vm.memory_bytes for vm in self.vms)))
        for leader, leading in enumerate(self.vms):
            for user in range(leader, len(self.vms)):
                joining = self.vms[user]
                if user != leader and joining.host == leading.host:
                    continue
                for host in self.hosts:
                    if host not in {leading.host, joining.host}:
                        self.use[user, leader, host] = len(self.use)
        if len(self.use) > MOST_VARIABLES:
            raise ZoneTooLargeError(f"{len(self.vms)} VMs on {len(self.hosts)} hosts are too many")

    def require_coverage(self) -> None:
        """Give every VM its slots, in slots that exist."""
        mine: dict[int, list[int]] = defaultdict(list)
        for (user, leader, host), column in self.use.items():
            mine[user].append(column)
            if user != leader:
                self._add(-1, 0, (column, 1.0), (self.use[leader, leader, host], -1.0))
        for user, vm in enumerate(self.vms):
            self._add(vm.required_count, vm.required_count, *((one, 1.0) for one in mine[user]))

    def require_different_hosts(self) -> None:
        """Let no host occur twice in any list L(v); pair variables say who shares with whom."""
        roles: dict[tuple[int, str], list[int]] = defaultdict(list)
        slots: dict[tuple[int, str], list[int]] = defaultdict(list)
        for (user, leader, host), column in self.use.items():
            roles[user, host].append(column)
            slots[leader, host].append(user)
        next_column = len(self.use)
        for (leader, host), users in slots.items():
            for one, other in combinations(users, 2):
                both = self.use[one, leader, host], self.use[other, leader, host]
                if self.vms[one].host == self.vms[other].host:
                    self._add(0, 1, *((column, 1.0) for column in both))
                    continue
                self._add(-1, 1, *((column, 1.0) for column in both), (next_column, -1.0))
                roles[one, self.vms[other].host].append(next_column)
                roles[other, self.vms[one].host].append(next_column)
                next_column += 1
        self.pairs = next_column - len(self.use)
        if next_column > MOST_VARIABLES:
            raise ZoneTooLargeError(f"{len(self.vms)} VMs on {len(self.hosts)} hosts are too many")
        for columns in roles.values():
            if len(columns) > 1:
                self._add(0, 1, *((column, 1.0) for column in columns))

    def require_room(self, room_bytes: Mapping[str, int | None]) -> None:
        """Keep the slots of a host within its room."""
        for host in self.hosts:
            room = room_bytes[host]
            if room is not None:
                leading = [(column, float(size)) for column, size in self._sizes(host)]
                self._add(0, room / self.unit, *leading)

    def solved(self, highspy: ModuleType, seconds: float) -> ExactBound:
        """Run the solver and read what it proved."""
        solver = highspy.Highs()
        for name, setting in (
            ("output_flag", False),
            ("threads", 1),
            ("time_limit", seconds),
            ("mip_rel_gap", 0.0),
        ):
            solver.setOptionValue(name, setting)
        total = len(self.use) + self.pairs
        solver.addVars(total, [0.0] * total, [1.0] * total)
        costs = dict(self._sizes(None))
        for column in range(len(self.use)):
            solver.changeColIntegrality(column, highspy.HighsVarType.kInteger)
            solver.changeColCost(column, float(costs.get(column, 0)))
        for lower, upper, columns, factors in self.rows:
            solver.addRow(lower, upper, len(columns), columns, factors)
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return ExactBound(is_feasible=False, is_optimal=False, bound_bytes=0, best_bytes=None)
        info = solver.getInfo()
        proven = info.mip_dual_bound if isfinite(info.mip_dual_bound) else 0.0
        bound = max(0, ceil(proven - _ROUNDING)) * self.unit
        has_plan = info.primal_solution_status == 2  # noqa: PLR2004 - feasible, by its manual
        slots = self._slots(solver.getSolution().col_value) if has_plan else ()
        best = sum(slot.memory_bytes for slot in slots) if has_plan else None
        return ExactBound(
            is_feasible=True,
            is_optimal=best == bound,
            bound_bytes=bound,
            best_bytes=best,
            slots=slots,
        )

    def _slots(self, chosen: Sequence[float]) -> tuple[ExactSlot, ...]:
        users: dict[tuple[int, str], list[str]] = defaultdict(list)
        for (user, leader, host), column in self.use.items():
            if chosen[column] > _HALF:
                users[leader, host].append(self.vms[user].uuid)
        return tuple(
            ExactSlot(
                host=host,
                memory_bytes=self.vms[leader].memory_bytes,
                users=tuple(sorted(listed)),
            )
            for (leader, host), listed in sorted(users.items())
        )

    def _sizes(self, host: str | None) -> Iterable[tuple[int, int]]:
        for (user, leader, place), column in self.use.items():
            if user == leader and host in {None, place}:
                yield column, self.vms[leader].memory_bytes // self.unit

    def _add(self, lower: float, upper: float, *terms: tuple[int, float]) -> None:
        self.rows.append(
            (lower, upper, [column for column, _ in terms], [factor for _, factor in terms])
        )
