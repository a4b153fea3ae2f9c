"""Who calls the Placement API (spec placement, 7.1-7.3).

One function per ``HEADROOM_AUTH`` turns a request into a :class:`Caller`; the table at the end is
the seam where another way of telling callers apart is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from django.http import HttpRequest

from core.conf import headroom
from journal.actors import Actor
from journal.auth import (
    TOKEN,
    Authenticator,
    Unauthenticated,
    configured_authenticator,
    credentials_of_request,
)
from journal.counters import count_refused_token
from placement.domain.errors import Unauthorized

ADMIN = "admin"
UNAUTHENTICATED = "The request you have made requires authentication."


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a token belongs to, as Placement's rules look at it.

    Attributes:
        actor: The caller as audit entries and the history name it.
    """

    actor: Actor

    @property
    def user_id(self) -> str:
        """Who it is."""
        return self.actor.user_id

    @property
    def project_id(self) -> str:
        """Project of the token; empty for tokens of another scope."""
        return self.actor.project_id

    @property
    def has_other_scope(self) -> bool:
        """Whether the token is for the system or a domain; no rule is for such tokens."""
        return bool(self.actor.system_scope or self.actor.domain_id)


def caller_of_open_server(request: HttpRequest) -> Caller:
    """Believe what the client says of itself (noauth2 of the reference; development only).

    Raises:
        Unauthorized: the request has no token at all.

    Source: spec placement, section 7.3.
    """
    meta = request.META
    token = meta.get(TOKEN)
    if not token:
        raise Unauthorized(UNAUTHENTICATED)
    return _open_caller(
        token,
        meta.get("HTTP_X_ROLES"),
        meta.get("HTTP_OPENSTACK_SYSTEM_SCOPE", ""),
        meta.get("HTTP_X_PROJECT_ID"),
    )


@lru_cache(maxsize=1024)
def _open_caller(
    token: str, roles: str | None, system_scope: str, given_project_id: str | None
) -> Caller:
    user_id, colon, project_id = token.partition(":")
    if roles is None:
        roles = ADMIN if user_id == ADMIN else ""
    fallback = "" if system_scope else (project_id if colon else user_id)
    actor = Actor(
        name=user_id,
        user_id=user_id,
        project_id=given_project_id or fallback,
        roles=frozenset(role.strip() for role in roles.split(",") if role.strip()),
        system_scope=system_scope,
    )
    return Caller(actor)


def caller_of_static_token(request: HttpRequest) -> Caller:
    """Return the caller behind a token of the settings; its name stands for the user's id.

    Raises:
        Unauthorized: the token is missing or unknown.
    """
    return _static_caller(_actor_of(request, configured_authenticator()))


@lru_cache(maxsize=1024)
def _static_caller(actor: Actor) -> Caller:
    return Caller(replace(actor, user_id=actor.name))


def caller_of_keystone_token(request: HttpRequest) -> Caller:
    """Return the caller behind a token of Keystone; no other header says who it is.

    Raises:
        Unauthorized: the token is missing, unknown, revoked or expired.
        NotReady: Keystone cannot be asked now.

    Source: spec placement, section 7.2.
    """
    return Caller(_actor_of(request, _keystone_authenticator()))


def _actor_of(request: HttpRequest, authenticator: Authenticator) -> Actor:
    credentials = credentials_of_request(request)
    try:
        return authenticator.authenticate(credentials)
    except Unauthenticated as error:
        count_refused_token(credentials.token)
        raise Unauthorized(UNAUTHENTICATED, headers=error.headers) from error


_known: tuple[object, Authenticator] | None = None


def _keystone_authenticator() -> Authenticator:
    """Return the process's authenticator, found without asking Django's settings each time."""
    global _known  # noqa: PLW0603 - one per process
    known, options = _known, headroom().keystone
    if known is None or known[0] is not options:
        # The OpenStack libraries take half a second to load: only who uses them waits.
        from journal.keystone import current_authenticator  # noqa: PLC0415

        known = _known = (options, current_authenticator())
    return known[1]


CALLERS: Mapping[str, Callable[[HttpRequest], Caller]] = {
    "noauth": caller_of_open_server,
    "token": caller_of_static_token,
    "keystone": caller_of_keystone_token,
}


def caller_of(request: HttpRequest) -> Caller:
    """Return who sends a request, told apart as ``HEADROOM_AUTH`` says.

    Raises:
        Unauthorized: the request carries no token, or an unknown one.
        NotReady: the identity service cannot be asked now.
    """
    return CALLERS[headroom().auth](request)
