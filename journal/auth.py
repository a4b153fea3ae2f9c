"""Who calls an API and what they may do (spec liquid, 3).

An :class:`Authenticator` turns a request's credentials into an :class:`~journal.actors.Actor`; a
policy rule says which roles may pass. ``token`` and ``noauth`` exist; ``keystone`` is refused by
the settings until its authenticator is written, and will be one more class here.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from django.conf import settings
from django.http import HttpRequest
from pydantic import SecretStr

from journal.actors import Actor
from journal.errors import HeadroomError

ROLE_ADMIN = "cloud_resource_admin"
ROLE_VIEWER = "cloud_resource_viewer"
ROLE_SCHEDULER = "cloud_resource_scheduler"

RULE_READ_ONLY = "readonly"
RULE_READ_WRITE = "readwrite"
RULE_SCHEDULE = "schedule"
RULE_EXPLAIN = "explain"
BASE_RULES: Mapping[str, frozenset[str]] = {
    RULE_READ_ONLY: frozenset({ROLE_ADMIN, ROLE_VIEWER}),
    RULE_READ_WRITE: frozenset({ROLE_ADMIN}),
    RULE_SCHEDULE: frozenset({ROLE_ADMIN, ROLE_SCHEDULER}),
    RULE_EXPLAIN: frozenset({ROLE_ADMIN, ROLE_SCHEDULER, ROLE_VIEWER}),
}

TOKEN_HEADER = "X-Auth-Token"  # noqa: S105 - the name of a header
BEARER = "bearer"


class Unauthenticated(HeadroomError):  # noqa: N818 - a state of the caller, not a defect
    """The caller did not say who it is, or nobody knows it."""

    code = "unauthenticated"


class Forbidden(HeadroomError):  # noqa: N818 - a state of the caller, not a defect
    """The caller is known but has no role that allows this."""

    code = "forbidden"


class AccessToken(Protocol):
    """A static token of the settings: who it is and what it may do."""

    token: SecretStr
    name: str
    roles: tuple[str, ...]


class Authenticator(Protocol):
    """Turns a token into an actor."""

    def authenticate(self, token: str) -> Actor:
        """Return who the token belongs to.

        Args:
            token: The token as sent; empty when the request carried none.

        Raises:
            Unauthenticated: the token is missing, unknown or expired.
            NotReady: the identity service cannot be asked now.
        """
        ...


@dataclass(frozen=True, slots=True)
class TokenAuthenticator:
    """Static bearer tokens from the settings (``HEADROOM_AUTH=token``)."""

    tokens: Sequence[AccessToken]

    def authenticate(self, token: str) -> Actor:
        """Return the actor of a token; the time taken does not tell how much of it is right.

        Raises:
            Unauthenticated: the token is empty or unknown.
        """
        offered = _digest(token)
        found: AccessToken | None = None
        for known in self.tokens:
            if hmac.compare_digest(_digest(known.token.get_secret_value()), offered):
                found = known
        if not token or found is None:
            raise Unauthenticated("Unauthorized")
        return Actor(name=found.name, roles=frozenset(found.roles))


@dataclass(frozen=True, slots=True)
class NoAuthenticator:
    """Everybody may do everything (``HEADROOM_AUTH=noauth``, development only)."""

    def authenticate(self, token: str) -> Actor:
        """Return an anonymous actor with every role, whatever the token."""
        del token
        return Actor(name="anonymous", roles=frozenset({ROLE_ADMIN, ROLE_VIEWER, ROLE_SCHEDULER}))


def configured_authenticator() -> Authenticator:
    """Return the authenticator that ``HEADROOM_AUTH`` asks for."""
    if settings.HEADROOM.auth == "noauth":
        return NoAuthenticator()
    return TokenAuthenticator(tokens=settings.HEADROOM.tokens)


def token_of(request: HttpRequest) -> str:
    """Return the token of ``X-Auth-Token``, else of ``Authorization: Bearer``, else nothing."""
    token = request.headers.get(TOKEN_HEADER, "")
    if token:
        return token
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    return credentials.strip() if scheme.lower() == BEARER else ""


def authenticate(request: HttpRequest) -> Actor:
    """Return who sends a request.

    Raises:
        Unauthenticated: it carries no token, or an unknown one.
    """
    return configured_authenticator().authenticate(token_of(request))


def authorise(actor: Actor, rule: str) -> None:
    """Let an actor pass a base rule, or refuse.

    Args:
        actor: Who asks.
        rule: A key of :data:`BASE_RULES`.

    Raises:
        Forbidden: none of the actor's roles is among those of the rule.
    """
    if not actor.roles & BASE_RULES[rule]:
        raise Forbidden("Forbidden")


def matches_secret(offered: str, secret: str) -> bool:
    """Return whether two secrets are equal, in time that does not depend on where they differ."""
    return hmac.compare_digest(_digest(offered), _digest(secret))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
