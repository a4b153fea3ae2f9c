"""Who calls an API and what they may do (spec liquid, 3; spec placement, 7).

An :class:`Authenticator` turns a request's credentials into an :class:`~journal.actors.Actor`; a
rule of :mod:`journal.policy` says whether the actor may pass.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from django.conf import settings
from django.http import HttpRequest

from journal.access_log import note_actor
from journal.actors import Actor
from journal.conf import AccessToken
from journal.counters import count_refused_token
from journal.errors import HeadroomError
from journal.known_settings import headroom
from journal.policy import (
    ROLE_ADMIN,
    ROLE_METRICS,
    ROLE_SCHEDULER,
    ROLE_VIEWER,
    PolicyRule,
    current_policy,
)
from journal.static_tokens import current_tokens

RULE_READ_ONLY = "readonly"
RULE_READ_WRITE = "readwrite"
RULE_SCHEDULE = "schedule"
RULE_API_READ = "api:read"
RULE_API_WRITE = "api:write"
BASE_RULES = (
    PolicyRule(
        name=RULE_READ_WRITE,
        check=f"role:{ROLE_ADMIN}",
        description="Change commitments and quota; base of other rules.",
    ),
    PolicyRule(
        name=RULE_READ_ONLY,
        check=f"role:{ROLE_VIEWER} or rule:{RULE_READ_WRITE}",
        description="Read capacity, usage and commitments; base of other rules.",
    ),
    PolicyRule(
        name=RULE_SCHEDULE,
        check=f"role:{ROLE_SCHEDULER} or rule:{RULE_READ_WRITE}",
        description="Ask for hosts for VMs; base of other rules.",
    ),
    PolicyRule(
        name=RULE_API_READ,
        check=f"rule:{RULE_READ_ONLY}",
        description="Read through the operators' API, what-if and simulation included.",
    ),
    PolicyRule(
        name=RULE_API_WRITE,
        check=f"rule:{RULE_READ_WRITE}",
        description="Change something through the operators' API.",
    ),
)

TOKEN_HEADER = "X-Auth-Token"  # noqa: S105 - the name of a header
SERVICE_TOKEN_HEADER = "X-Service-Token"  # noqa: S105 - the name of a header
TOKEN = "HTTP_X_AUTH_TOKEN"  # noqa: S105 - what WSGI calls it
SERVICE_TOKEN = "HTTP_X_SERVICE_TOKEN"  # noqa: S105 - likewise
BEARER = "bearer"
BEARER_CHALLENGE = "Bearer"
NO_TARGET: Mapping[str, object] = {}


class Unauthenticated(HeadroomError):  # noqa: N818 - a state of the caller, not a defect
    """The caller did not say who it is, or nobody knows it.

    Attributes:
        challenge: Value of ``WWW-Authenticate``: how to say who one is. Every 401 carries it.
    """

    code = "unauthenticated"
    status = 401

    def __init__(self, message: str, *, challenge: str = BEARER_CHALLENGE) -> None:
        super().__init__(message)
        self.challenge = challenge

    @property
    def headers(self) -> dict[str, str]:
        """Headers that the answer has to carry."""
        return {"WWW-Authenticate": self.challenge}


class Forbidden(HeadroomError):  # noqa: N818 - a state of the caller, not a defect
    """The caller is known but a rule does not let it pass; ``facts["rule"]`` names the rule."""

    code = "forbidden"
    status = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a request says of its sender.

    Attributes:
        token: The token as sent; empty when the request carried none.
        service_token: Token of the service that passes the request on; empty without one.
        method: HTTP method; restricted application credentials are for some only.
        path: Path, likewise.
    """

    token: str
    service_token: str = ""
    method: str = "GET"
    path: str = "/"


class Authenticator(Protocol):
    """Turns credentials into an actor."""

    def authenticate(self, credentials: Credentials) -> Actor:
        """Return who the credentials belong to.

        Raises:
            Unauthenticated: the token is missing, unknown or expired.
            NotReady: the identity service cannot be asked now.
        """


@dataclass(frozen=True, slots=True)
class TokenAuthenticator:
    """Static bearer tokens (``HEADROOM_AUTH=token``)."""

    tokens: Sequence[AccessToken]

    def authenticate(self, credentials: Credentials) -> Actor:
        """Return the actor of a token; the time taken does not tell how much of it is right.

        Raises:
            Unauthenticated: the token is empty or unknown.
        """
        offered = _digest(credentials.token)
        found: AccessToken | None = None
        for known in self.tokens:
            if hmac.compare_digest(known.digest, offered):
                found = known
        if not credentials.token or found is None:
            raise Unauthenticated("Unauthorized")
        return found.actor


@dataclass(frozen=True, slots=True)
class NoAuthenticator:
    """Everybody may do everything (``HEADROOM_AUTH=noauth``, development only)."""

    def authenticate(self, credentials: Credentials) -> Actor:
        """Return an anonymous actor with every role, whatever the token."""
        return Actor(name="anonymous", roles=frozenset({ROLE_ADMIN, ROLE_VIEWER, ROLE_SCHEDULER}))


def configured_authenticator() -> Authenticator:
    """Return the authenticator that ``HEADROOM_AUTH`` asks for."""
    kind = headroom().auth
    if kind == "keystone":
        # The OpenStack libraries take half a second to load: only who uses them waits.
        from journal.keystone import current_authenticator  # noqa: PLC0415

        return current_authenticator()
    if kind == "noauth":
        return NoAuthenticator()
    return TokenAuthenticator(tokens=current_tokens())


def token_of(request: HttpRequest) -> str:
    """Return the token of ``X-Auth-Token``, else of ``Authorization: Bearer``, else nothing.

    Headers are found under the names that WSGI gives them: the framework's map of all of them takes
    longer to make than all else that is done here.
    """
    token = request.META.get(TOKEN, "")
    if token:
        return str(token)
    scheme, _, credentials = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
    return credentials.strip() if scheme.lower() == BEARER else ""


def credentials_of_request(request: HttpRequest) -> Credentials:
    """Return what a request says of its sender."""
    return Credentials(
        token=token_of(request),
        service_token=request.META.get(SERVICE_TOKEN, ""),
        method=str(request.method),
        path=request.path,
    )


def authenticate(request: HttpRequest) -> Actor:
    """Return who sends a request.

    Raises:
        Unauthenticated: it carries no token, or an unknown one.
        NotReady: the identity service cannot be asked now.
    """
    credentials = credentials_of_request(request)
    try:
        actor = configured_authenticator().authenticate(credentials)
    except Unauthenticated:
        count_refused_token(credentials.token)
        raise
    note_actor(request, actor)
    return actor


def authorise(actor: Actor, rule: str, target: Mapping[str, object] = NO_TARGET) -> None:
    """Let an actor pass a policy rule, or refuse.

    Args:
        rule: Name of a rule that an app registered.
        target: What the request is about, as far as rules may look at it (``project_id``).

    Raises:
        Forbidden: the rule does not let the actor pass.
    """
    if not current_policy().allows(actor, rule, target):
        raise Forbidden("Forbidden", rule=rule)


def may_scrape(offered: str, *, is_open: bool) -> bool:
    """Return whether a token opens a metrics page.

    ``HEADROOM_METRICS_TOKEN`` does, and so do static tokens with the role ``metrics``, whatever
    ``HEADROOM_AUTH`` is.

    Args:
        offered: The token as sent; may be empty.
        is_open: What holds where there can be neither. A token file may get one at any time: a
            page does not open because its last token was taken out.
    """
    secret = settings.HEADROOM.metrics_token
    plain = "" if secret is None else secret.get_secret_value().strip()
    known = [_digest(plain)] if plain else []
    known += [token.digest for token in current_tokens() if ROLE_METRICS in token.roles]
    if not known and settings.HEADROOM.tokens_file is None:
        return is_open
    matches = [hmac.compare_digest(digest, _digest(offered)) for digest in known]
    return bool(offered) and any(matches)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
