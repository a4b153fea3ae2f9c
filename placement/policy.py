"""What callers may do: the reference's rule names, as oslo.policy evaluates them.

Rules are parsed once; an operator's file is read again after it changed. A decision is remembered
for the same rule, caller and project: the library spends longer on one than a small read takes.

The file is Placement's own (``HEADROOM_PLACEMENT__POLICY_FILE``). Its rules have the names that the
reference gives them, base rules such as ``admin_api`` included, so it shares no namespace with the
file of the other APIs (:mod:`journal.policy`): neither ever changes a rule of the other.

Source: spec placement, section 7.4.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
import yaml
from oslo_config import cfg
from oslo_policy import policy

from core.conf import headroom
from journal.actors import Actor
from journal.policy import UnusablePolicyError, credentials_of
from journal.watched_file import WatchedFile
from placement.access import Caller
from placement.domain.errors import PolicyDenied

log = structlog.get_logger(__name__)

BASE_RULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "admin_api": "role:admin",
        "service_api": "role:service",
        "admin_or_service_api": "role:admin or role:service",
        "project_reader_api": "role:reader and project_id:%(project_id)s",
        "admin_or_project_reader_or_service_api": (
            "role:admin or (role:reader and project_id:%(project_id)s) or role:service"
        ),
    }
)
PROVIDERS: Final = "placement:resource_providers"
RULES: Final = (
    f"{PROVIDERS}:list",
    f"{PROVIDERS}:create",
    f"{PROVIDERS}:show",
    f"{PROVIDERS}:update",
    f"{PROVIDERS}:delete",
    f"{PROVIDERS}:inventories:list",
    f"{PROVIDERS}:inventories:create",
    f"{PROVIDERS}:inventories:show",
    f"{PROVIDERS}:inventories:update",
    f"{PROVIDERS}:inventories:delete",
    f"{PROVIDERS}:aggregates:list",
    f"{PROVIDERS}:aggregates:update",
    f"{PROVIDERS}:traits:list",
    f"{PROVIDERS}:traits:update",
    f"{PROVIDERS}:traits:delete",
    f"{PROVIDERS}:usages",
    f"{PROVIDERS}:allocations:list",
    "placement:traits:list",
    "placement:traits:show",
    "placement:traits:update",
    "placement:traits:delete",
    "placement:resource_classes:list",
    "placement:resource_classes:create",
    "placement:resource_classes:show",
    "placement:resource_classes:update",
    "placement:resource_classes:delete",
    "placement:usages",
    "placement:allocations:list",
    "placement:allocations:manage",
    "placement:allocations:update",
    "placement:allocations:delete",
    "placement:allocation_candidates:list",
    "placement:reshaper:reshape",
)
OTHER_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "placement:usages": "rule:admin_or_project_reader_or_service_api",
        "placement:reshaper:reshape": "rule:service_api",
    }
)
#: Where a check refers to another rule.
REFERENCE: Final = re.compile(r"\brule:([^\s()'\"]+)")
#: Seconds for which a policy file is taken as unchanged.
RELOAD_SECONDS: Final = 5.0
#: Decisions that a process remembers; more than the callers of any cloud's services.
MAX_DECISIONS: Final = 10_000


class _Rules:
    """Parsed rules and what they decided so far; never changed, only replaced as a whole.

    Attributes:
        names: Rules that requests ask for, and those that such rules refer to.
    """

    def __init__(self, overrides: Mapping[str, str], *, enforces_new_defaults: bool) -> None:
        defaults = {rule: _default(rule, enforces_new_defaults) for rule in RULES}
        self._enforcer = policy.Enforcer(cfg.ConfigOpts(), use_conf=False)
        checks = _in_use({**BASE_RULES, **defaults, **overrides})
        self.names = frozenset(checks)
        self._enforcer.set_rules(policy.Rules.from_dict(checks), use_conf=False)
        try:
            self._enforcer.check_rules(raise_on_violation=True)
        except policy.InvalidDefinitionError as error:
            raise UnusablePolicyError(str(error).replace("\n", " ")) from error
        # A check that asks another server may answer otherwise the next time.
        self._is_repeatable = not any("http" in check for check in checks.values())
        self._decisions: dict[tuple[str, Actor, str], bool] = {}

    def allow(self, rule: str, actor: Actor, project_id: str) -> bool:
        """Return whether a rule lets an actor pass, remembered if that may be."""
        if not self._is_repeatable:
            return self._decide(rule, actor, project_id)
        key = (rule, actor, project_id)
        known = self._decisions.get(key)
        if known is None:
            known = self._decide(rule, actor, project_id)
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            self._decisions[key] = known
        return known

    def _decide(self, rule: str, actor: Actor, project_id: str) -> bool:
        # What a token does not say is left out: an empty project equals no project.
        credentials = {name: fact for name, fact in credentials_of(actor).items() if fact != ""}
        target = {"project_id": project_id, "user_id": actor.user_id}
        return bool(self._enforcer.rules[rule](target, credentials, self._enforcer))


def _in_use(checks: Mapping[str, str]) -> dict[str, str]:
    """Return the rules that requests lead to; what else a file holds is not looked at."""
    reached: dict[str, str] = {}
    waiting = list(RULES)
    while waiting:
        name = waiting.pop()
        if name in checks and name not in reached:
            reached[name] = checks[name]
            waiting += REFERENCE.findall(checks[name])
    return reached


def _default(rule: str, enforces_new_defaults: bool) -> str:  # noqa: FBT001 - of one caller
    check = OTHER_DEFAULTS.get(rule, "rule:admin_or_service_api")
    return check if enforces_new_defaults else f"({check}) or rule:admin_api"


class Policy:
    """Default rules and what an operator's file makes of them.

    Args:
        policy_file: Path of the file; empty for none.
        enforces_new_defaults: Whether role ``admin`` passes only the rules that name it.
        reload_seconds: Shortest time between two looks at the file.
        clock: Seconds that only grow.

    Raises:
        UnusablePolicyError: the file cannot be used.
    """

    def __init__(
        self,
        *,
        policy_file: str,
        enforces_new_defaults: bool,
        reload_seconds: float = RELOAD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = (
            WatchedFile(Path(policy_file), look_seconds=reload_seconds, clock=clock)
            if policy_file
            else None
        )
        self._enforces_new_defaults = enforces_new_defaults
        self._rules = self._load()

    def allows(self, rule: str, caller: Caller, *, project_id: str) -> bool:
        """Return whether a caller may do what a rule stands for.

        Tokens of the system or a domain may do nothing, as every rule is for projects.

        Args:
            rule: One of :data:`RULES`.
            caller: Who asks.
            project_id: Project that the request is about.
        """
        if caller.has_other_scope:
            return False
        if self._file is not None and self._file.has_changed():
            self._load_again(self._file.path)
        return self._rules.allow(rule, caller.actor, project_id)

    def _load(self) -> _Rules:
        overrides = {} if self._file is None else _overrides(self._file.path)
        rules = _Rules(overrides, enforces_new_defaults=self._enforces_new_defaults)
        unknown = sorted(set(overrides) - rules.names - set(BASE_RULES))
        if self._file is not None and unknown:
            log.warning("placement_policy_unknown_rules", rules=unknown, file=str(self._file.path))
        return rules

    def _load_again(self, path: Path) -> None:
        try:
            self._rules = self._load()
        except UnusablePolicyError as error:
            log.error("placement_policy_unreadable", file=str(path), error=str(error))  # noqa: TRY400 - one line


def _overrides(path: Path) -> dict[str, str]:
    try:
        rules = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise UnusablePolicyError(str(error).replace("\n", " ")) from error
    if not isinstance(rules, dict):
        raise UnusablePolicyError(f"holds no rules but {type(rules).__name__}")
    return {str(name): str(check) for name, check in rules.items()}


@cache
def _policy(policy_file: str, *, enforces_new_defaults: bool) -> Policy:
    return Policy(policy_file=policy_file, enforces_new_defaults=enforces_new_defaults)


def configured_policy() -> Policy:
    """Return the rules that the settings ask for, parsed once per process."""
    placement = headroom().placement
    return _policy(placement.policy_file, enforces_new_defaults=placement.enforce_new_defaults)


def authorise(rule: str, caller: Caller, *, project_id: str | None = None) -> None:
    """Let a caller pass a rule, or refuse.

    Args:
        rule: One of :data:`RULES`.
        caller: Who asks.
        project_id: Project that the request is about; the caller's own when left out.

    Raises:
        PolicyDenied: the rule says no.
    """
    target = caller.project_id if project_id is None else project_id
    if not configured_policy().allows(rule, caller, project_id=target):
        raise PolicyDenied(f"Policy does not allow {rule} to be performed.")
