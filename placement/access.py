"""Who calls the Placement API (spec placement, 7.1-7.3).

One function per ``HEADROOM_AUTH`` turns a request into a :class:`Caller`; the table at the end is
the seam where another way of telling callers apart is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.http import HttpRequest

from journal.actors import Actor
from journal.auth import Unauthenticated, authenticate
from placement.conf import headroom
from placement.domain.errors import Unauthorized

ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a token says.

    Attributes:
        user_id: Who it is.
        project_id: Project of the token; empty for tokens of another scope.
        roles: Roles in that scope.
        system_scope: What of the system the token is for, such as ``all``; empty if none.
    """

    user_id: str
    project_id: str = ""
    roles: frozenset[str] = frozenset()
    system_scope: str = ""

    @property
    def actor(self) -> Actor:
        """The caller as audit entries name it."""
        return Actor(name=self.user_id, roles=self.roles)


def caller_of_open_server(request: HttpRequest) -> Caller:
    """Believe what the client says of itself (noauth2 of the reference; development only).

    Raises:
        Unauthorized: the request has no token at all.

    Source: spec placement, section 7.3.
    """
    meta = request.META
    token = meta.get("HTTP_X_AUTH_TOKEN")
    if not token:
        raise Unauthorized("The request you have made requires authentication.")
    user_id, colon, project_id = token.partition(":")
    roles = meta.get("HTTP_X_ROLES")
    if roles is None:
        roles = ADMIN if user_id == ADMIN else ""
    system_scope = meta.get("HTTP_OPENSTACK_SYSTEM_SCOPE", "")
    fallback = "" if system_scope else (project_id if colon else user_id)
    return Caller(
        user_id=user_id,
        project_id=meta.get("HTTP_X_PROJECT_ID") or fallback,
        roles=frozenset(role.strip() for role in roles.split(",") if role.strip()),
        system_scope=system_scope,
    )


def caller_of_token(request: HttpRequest) -> Caller:
    """Return the caller behind a token of Keystone, or a static one of the settings.

    Raises:
        Unauthorized: the token is missing, unknown or expired.
        NotReady: the identity service cannot be asked now.
    """
    try:
        actor = authenticate(request)
    except Unauthenticated as error:
        message = "The request you have made requires authentication."
        raise Unauthorized(message, headers=error.headers) from error
    return Caller(
        user_id=actor.user_id or actor.name,
        project_id=actor.project_id,
        roles=actor.roles,
        system_scope=actor.system_scope,
    )


CALLERS: Mapping[str, Callable[[HttpRequest], Caller]] = {
    "noauth": caller_of_open_server,
    "token": caller_of_token,
    "keystone": caller_of_token,
}


def caller_of(request: HttpRequest) -> Caller:
    """Return who sends a request, told apart as ``HEADROOM_AUTH`` says.

    Raises:
        Unauthorized: the request carries no token, or an unknown one.
    """
    return CALLERS[headroom().auth](request)
