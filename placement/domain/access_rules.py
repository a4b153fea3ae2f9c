"""The gateway's own access rules: of a list the first match decides (spec placement, 7.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

METHODS: Final = frozenset({"*", "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
SOURCES: Final[Mapping[str, str]] = {"query": "param", "body": "field"}
ANY: Final = "*"
BELOW: Final = "/*"


@dataclass(frozen=True, slots=True)
class ProjectScope:
    """Where a request names the project that must be that of the token."""

    source: str
    name: str


@dataclass(frozen=True, slots=True)
class Role:
    """A role that may pass, perhaps for its own project alone."""

    name: str
    scope: ProjectScope | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may send requests of a pattern.

    Attributes:
        method: ``*`` is any.
        path: Exact, or the beginning where ``is_prefix``.
        roles: None are needed if it is empty, nor a token.
    """

    method: str
    path: str
    is_prefix: bool
    roles: Sequence[Role]

    def matches(self, method: str, path: str) -> bool:
        """Return whether a request is one of the pattern."""
        if self.method not in {ANY, method}:
            return False
        if not self.is_prefix:
            return path == self.path
        return path == self.path or path.startswith(f"{self.path}/")


def rule_for(rules: Iterable[Rule], method: str, path: str) -> Rule | None:
    """Return the first rule that a request matches."""
    return next((rule for rule in rules if rule.matches(method, path)), None)


def may_pass(
    rule: Rule, roles: Iterable[str], project_id: str, named: Callable[[ProjectScope], str]
) -> bool:
    """Return whether a caller fits one of the roles.

    Args:
        rule: That the request matches.
        roles: The caller's.
        project_id: Of its token.
        named: Returns the project that the request names; empty if it names none.
    """
    held = {role.lower() for role in roles}
    return any(
        role.name.lower() in held
        and (role.scope is None or (bool(project_id) and named(role.scope) == project_id))
        for role in rule.roles
    )


def parse_rules(given: Sequence[Mapping[str, Any]]) -> tuple[Rule, ...]:  # Any: JSON
    """Return the rules of the settings.

    Args:
        given: Of each rule ``pattern`` (``METHOD /path``) and ``roles``: names, or objects with
            ``name`` and ``projectScope``.

    Raises:
        ValueError: one cannot be understood; one line.
    """
    return tuple(_rule(one) for one in given)


def _rule(given: Mapping[str, Any]) -> Rule:  # Any: JSON
    unknown = sorted(set(given) - {"pattern", "roles"})
    if unknown:
        raise ValueError(f"a rule has nothing like {', '.join(unknown)}")
    pattern = str(given.get("pattern", ""))
    method, space, path = pattern.partition(" ")
    if not space or method not in METHODS or not path.startswith("/") or " " in path:
        raise ValueError(f"{pattern!r} is not METHOD /path")
    is_prefix = path.endswith(BELOW)
    if ANY in path.removesuffix(BELOW):
        raise ValueError(f"{pattern!r}: a * stands at the end of the path alone")
    roles = given.get("roles") or []
    if isinstance(roles, str):
        raise ValueError(f"{pattern!r}: roles are a list")  # noqa: TRY004 - of a setting
    return Rule(
        method=method,
        path=path.removesuffix(BELOW) if is_prefix else path,
        is_prefix=is_prefix,
        roles=tuple(_role(one, pattern) for one in roles),
    )


def _role(given: object, pattern: str) -> Role:
    if isinstance(given, str) and given:
        return Role(given)
    if not isinstance(given, Mapping) or not given.get("name"):
        raise ValueError(f"{pattern!r}: a role is a name, or an object with one")
    scope = given.get("projectScope")
    if scope is None:
        return Role(str(given["name"]))
    source = str(scope.get("from")) if isinstance(scope, Mapping) else ""
    if source not in SOURCES or not scope.get(SOURCES[source]):
        raise ValueError(
            f"{pattern!r}: projectScope is from query with a param, or from body with a field"
        )
    return Role(str(given["name"]), ProjectScope(source, str(scope[SOURCES[source]])))
