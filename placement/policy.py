"""What callers may do: the reference's rule names, as oslo.policy evaluates them.

Rules are parsed once; an operator's file is read again after it changed. A decision is remembered
for the same rule, caller and project: the library spends longer on one than a small read takes.

Source: spec placement, section 7.4.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
import yaml
from oslo_config import cfg
from oslo_policy import policy

from placement.access import Caller
from placement.conf import headroom
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
#: Seconds for which a policy file is taken as unchanged.
RELOAD_SECONDS: Final = 5.0
#: Decisions that a process remembers; more than the callers of any cloud's services.
MAX_DECISIONS: Final = 10_000


class Policy:
    """Default rules and what an operator's file makes of them."""

    def __init__(self, *, policy_file: str, enforces_new_defaults: bool) -> None:
        """Read and parse all rules."""
        self._file = Path(policy_file) if policy_file else None
        self._enforces_new_defaults = enforces_new_defaults
        self._checked_at = time.monotonic()
        self._modified_at = self._modification_time()
        self._decisions: dict[tuple[str, Caller, str], bool] = {}
        self._is_repeatable = True
        self._enforcer = self._load()

    def allows(self, rule: str, caller: Caller, *, project_id: str) -> bool:
        """Return whether a caller may do what a rule stands for.

        Args:
            rule: One of :data:`RULES`.
            caller: Who asks.
            project_id: Project that the request is about.
        """
        if caller.system_scope:
            return False
        self._reload_if_changed()
        key = (rule, caller, project_id)
        known = self._decisions.get(key)
        if known is None:
            known = self._decide(rule, caller, project_id)
            if self._is_repeatable:
                if len(self._decisions) >= MAX_DECISIONS:
                    self._decisions.clear()
                self._decisions[key] = known
        return known

    def _decide(self, rule: str, caller: Caller, project_id: str) -> bool:
        credentials = {
            "roles": list(caller.roles),
            "project_id": caller.project_id or None,
            "user_id": caller.user_id,
        }
        target = {"project_id": project_id, "user_id": caller.user_id}
        check = self._enforcer.rules[rule]
        return bool(check(target, credentials, self._enforcer))

    def _load(self) -> policy.Enforcer:
        overrides = self._overrides()
        unknown = sorted(set(overrides) - set(RULES) - set(BASE_RULES))
        if unknown:
            log.warning("placement_policy_unknown_rules", rules=unknown, file=str(self._file))
        enforcer = policy.Enforcer(cfg.ConfigOpts(), use_conf=False)
        # A check that asks another server may answer otherwise the next time.
        self._is_repeatable = not any("http" in check for check in overrides.values())
        checks = {**BASE_RULES, **{rule: self._default(rule) for rule in RULES}, **overrides}
        enforcer.set_rules(policy.Rules.from_dict(checks), use_conf=False)
        return enforcer

    def _default(self, rule: str) -> str:
        check = OTHER_DEFAULTS.get(rule, "rule:admin_or_service_api")
        return check if self._enforces_new_defaults else f"({check}) or rule:admin_api"

    def _overrides(self) -> dict[str, str]:
        if self._file is None:
            return {}
        rules = yaml.safe_load(self._file.read_text(encoding="utf-8")) or {}
        return {str(name): str(check) for name, check in rules.items()}

    def _modification_time(self) -> float:
        return self._file.stat().st_mtime if self._file and self._file.exists() else 0.0

    def _reload_if_changed(self) -> None:
        now = time.monotonic()
        if self._file is None or now - self._checked_at < RELOAD_SECONDS:
            return
        self._checked_at = now
        modified_at = self._modification_time()
        if modified_at in {0.0, self._modified_at}:
            return
        try:
            self._enforcer = self._load()
            self._decisions = {}
        except (OSError, yaml.YAMLError, AttributeError) as error:
            log.error("placement_policy_unreadable", file=str(self._file), error=str(error))  # noqa: TRY400 - one line
        self._modified_at = modified_at


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
