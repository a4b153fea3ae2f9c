"""Who may do what: oslo.policy rules with defaults in code (spec liquid, 3; placement, 7.4).

Every app registers its rules when it starts; one file of the operator may replace any of them. The
file is read again when it changes, so that a new rule needs no restart. A file that cannot be used
stops the start; one that breaks later is logged, and the rules in force stay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from oslo_config import cfg
from oslo_policy import policy as oslo

from journal.actors import Actor
from journal.watched_file import LOOK_SECONDS, WatchedFile

log = structlog.get_logger(__name__)

ROLE_ADMIN = "cloud_resource_admin"
ROLE_VIEWER = "cloud_resource_viewer"
ROLE_SCHEDULER = "cloud_resource_scheduler"
ROLE_METRICS = "metrics"
"""Of static tokens: opens the metrics pages, and nothing else."""
ANSWERS_KEPT = 1024
"""Of rules and actors: the library looks at the signature of each check that it calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRule:
    """A rule with what holds when the operator says nothing.

    Attributes:
        name: Its name in policy files; never reused for another meaning.
        check: Default, in the language of oslo.policy.
        description: What it protects, one sentence.
        scopes: Kinds of tokens it is for (``project``, ``domain``, ``system``); empty is all.
    """

    name: str
    check: str
    description: str
    scopes: tuple[str, ...] = ()


class UnusablePolicyError(Exception):
    """The operator's policy file cannot be read or understood; the message is one line."""


class Policy:
    """The rules in force: registered defaults, and what a file says instead.

    Args:
        defaults: Registered rules by name.
        path: The operator's file, if there is one.
        look_seconds: Shortest time between two looks at the file.
        clock: Seconds that only grow.

    Raises:
        UnusablePolicyError: the file cannot be used.
    """

    def __init__(
        self,
        defaults: Mapping[str, PolicyRule],
        path: Path | None = None,
        *,
        look_seconds: float = LOOK_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._defaults = dict(defaults)
        self._path = path
        self._file = (
            None if path is None else WatchedFile(path, look_seconds=look_seconds, clock=clock)
        )
        self._enforcer = self._load()
        self._answer = self._kept()

    def allows(self, actor: Actor, rule: str, target: Mapping[str, object]) -> bool:
        """Return whether a rule lets an actor pass.

        Args:
            rule: Name of a registered rule, or of one that the operator's file adds.
            target: What the request is about, for checks such as ``project_id:%(project_id)s``.
        """
        if self._file is not None and self._file.has_changed():
            self._load_again()
        if target:
            return bool(self._enforcer.enforce(rule, dict(target), credentials_of(actor)))
        return self._answer(rule, actor)

    def _kept(self) -> Callable[[str, Actor], bool]:
        """Return what rules say of actors alone, which they say again until they are others."""

        def answer(rule: str, actor: Actor) -> bool:
            return bool(self._enforcer.enforce(rule, {}, credentials_of(actor)))

        asks_others = any("http" in str(check) for check in self._enforcer.rules.values())
        return answer if asks_others else lru_cache(ANSWERS_KEPT)(answer)

    def _load_again(self) -> None:
        try:
            self._enforcer = self._load()
            self._answer = self._kept()
        except UnusablePolicyError as error:
            log.error("policy_file_ignored", problem=str(error))  # noqa: TRY400 - one line
        else:
            log.info("policy_file_loaded", file=str(self._path))

    def _load(self) -> oslo.Enforcer:
        replaced = self._file_rules()
        unknown = sorted(set(replaced) - set(self._defaults))
        if unknown:
            log.warning("policy_rules_unknown", file=str(self._path), rules=unknown)
        conf = cfg.ConfigOpts()
        conf([], default_config_files=[], default_config_dirs=[])
        enforcer = oslo.Enforcer(conf, use_conf=False)  # type: ignore[no-untyped-call,unused-ignore]
        checks = {name: rule.check for name, rule in self._defaults.items()} | replaced
        enforcer.register_defaults(
            [
                oslo.RuleDefault(
                    rule.name, rule.check, rule.description, scope_types=list(rule.scopes) or None
                )
                for rule in self._defaults.values()
            ]
        )
        enforcer.set_rules(oslo.Rules.from_dict(checks), use_conf=False)
        try:
            enforcer.check_rules(raise_on_violation=True)
        except oslo.InvalidDefinitionError as error:
            raise UnusablePolicyError(f"{self._path}: {error}".replace("\n", " ")) from error
        return enforcer

    def _file_rules(self) -> dict[str, str]:
        if self._path is None:
            return {}
        try:
            text = self._path.read_text(encoding="utf-8")
            found: Any = oslo.parse_file_contents(text)  # Any: whatever the file holds
        except (OSError, ValueError) as error:
            message = f"{self._path}: {error}"
            raise UnusablePolicyError(message.replace("\n", " ")) from error
        if not isinstance(found, dict) or not all(
            isinstance(name, str) and isinstance(check, str) for name, check in found.items()
        ):
            raise UnusablePolicyError(f"{self._path}: must map names of rules to checks, both text")
        return found


def credentials_of(actor: Actor) -> dict[str, object]:
    """Return an actor as checks see it (spec liquid, 3)."""
    return {
        "roles": list(actor.roles),
        "service_roles": list(actor.service_roles),
        "user_id": actor.user_id,
        "user_name": actor.user_name,
        "user_domain_id": actor.user_domain_id,
        "user_domain_name": actor.user_domain_name,
        "project_id": actor.project_id,
        "project_name": actor.project_name,
        "project_domain_id": actor.project_domain_id,
        "project_domain_name": actor.project_domain_name,
        "domain_id": actor.domain_id,
        "domain_name": actor.domain_name,
        "system_scope": actor.system_scope,
        "is_admin_project": actor.is_admin_project,
    }


_registered: dict[str, PolicyRule] = {}


def register_rules(rules: Iterable[PolicyRule]) -> None:
    """Add rules of an app; called from its ``ready``.

    Raises:
        ValueError: another rule has that name already.
    """
    for rule in rules:
        known = _registered.get(rule.name)
        if known is not None and known != rule:
            raise ValueError(f"policy rule {rule.name} is registered twice")
        _registered[rule.name] = rule


def current_policy() -> Policy:
    """Return the rules in force, of the file that ``HEADROOM_POLICY_FILE`` names now.

    Raises:
        UnusablePolicyError: the file cannot be used.
    """
    return _policy(settings.HEADROOM.policy_file, len(_registered))


@lru_cache(maxsize=1)
def _policy(path: Path | None, _: int) -> Policy:
    """Return the rules of a file; made anew when it is another, or when rules were registered."""
    return Policy(_registered, path)
