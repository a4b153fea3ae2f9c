"""Tokens that Keystone issued (``HEADROOM_AUTH=keystone``; spec liquid, 3; placement, 7.2).

keystonemiddleware asks Keystone; it is built here from our settings and gets a request that holds
nothing but the tokens, the method and the path. So no header of a client can claim an identity.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol

import structlog
import webob
from django.conf import settings
from keystoneauth1 import loading
from keystoneauth1.exceptions import ClientException
from keystonemiddleware.auth_token import AuthProtocol
from oslo_config import cfg

from journal.actors import LONGEST_ACTOR_NAME, Actor
from journal.auth import SERVICE_TOKEN_HEADER, TOKEN_HEADER, Credentials, Unauthenticated
from journal.conf import KeystoneSettings
from journal.errors import Unavailable
from journal.token_cache import TokenCache, cache_key
from journal.token_flights import NoAnswerInTimeError, TokenFlights, TooManyWaitError


def login_options(options: KeystoneSettings) -> tuple[str, dict[str, str]]:
    """Return the plugin of keystoneauth1 with which we log in ourselves, and its options."""
    if options.application_credential_id:
        secret = options.application_credential_secret
        return "v3applicationcredential", {
            "auth_url": options.auth_url,
            "application_credential_id": options.application_credential_id,
            "application_credential_secret": secret.get_secret_value() if secret else "",
        }
    return "v3password", {
        "auth_url": options.auth_url,
        "username": options.username,
        "password": options.password.get_secret_value() if options.password else "",
        "user_domain_name": options.user_domain_name,
        "project_name": options.project_name,
        "project_domain_name": options.project_domain_name,
    }


def own_login(options: KeystoneSettings) -> Any:  # Any: the library has no types
    """Return our login, the same for all sessions of this process: one token serves them all.

    It logs in when first asked, and again when the token ends or is refused; threads may share it.
    """
    plugin, login = login_options(options)
    return _shared_login(plugin, tuple(sorted(login.items())))


@lru_cache(maxsize=8)
def _shared_login(plugin: str, login: tuple[tuple[str, str], ...]) -> Any:  # Any: as above
    return loading.get_plugin_loader(plugin).load_from_options(**dict(login))


log = structlog.get_logger(__name__)

UNKNOWN_TOKEN_SECONDS = 10.0
UNAUTHORIZED = 401
OK = 200
SECTION = "keystone_authtoken"
CACHE = "headroom.no_token_cache"
UNUSABLE = "Keystone cannot be asked about the token"
TOKEN_TEXT = re.compile(r"[!-~]+")
WSGIEnvironment = dict[str, Any]  # Any: as WSGI has it


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidToken:
    """What Keystone says of a token it accepts.

    Attributes:
        actor: Who it is.
        expires_at: Seconds since the epoch at which it ends.
        is_restricted: It is for some requests only (an application credential with access rules),
            so that the answer to one request says nothing about the next.
    """

    actor: Actor
    expires_at: float
    is_restricted: bool = False


class KeystoneUnavailable(Unavailable):
    """Keystone cannot be asked about a token that is not known yet."""

    code = "token_unchecked"


class TokenValidator(Protocol):
    """Asks Keystone about tokens."""

    def validate(self, credentials: Credentials) -> ValidToken | None:
        """Return what Keystone says of the credentials, None when it does not accept them.

        Raises:
            KeystoneUnavailable: Keystone cannot be asked.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimits:
    """How much is remembered, and how long and how many may wait.

    Attributes:
        cache_seconds: Longest time an answer is kept; 0 asks every time.
        cache_entries: Most tokens remembered.
        most_waiting: Most requests that wait for Keystone at once.
        timeout_seconds: Longest time one waits.
    """

    cache_seconds: int
    cache_entries: int
    most_waiting: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """The answer to one question: an actor, a refusal without one, or why it failed."""

    request: tuple[str, str]
    actor: Actor | None = None
    is_restricted: bool = False
    failure: str = ""


class KeystoneAuthenticator:
    """Keystone's answers, remembered for a bounded time.

    Known tokens never wait. Of the others, few may wait at once, and none for long: a slow Keystone
    leaves threads to everybody else.

    Args:
        validator: Who asks Keystone.
        challenge: Value of ``WWW-Authenticate`` in refusals.
        limits: How much is remembered, and how long and how many may wait.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        validator: TokenValidator,
        *,
        challenge: str,
        limits: TokenLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._validator = validator
        self._challenge = challenge
        self._limits = limits
        self._clock = clock
        self._known: TokenCache[Actor] = TokenCache(limits.cache_entries, clock)
        self._unknown: TokenCache[bool] = TokenCache(limits.cache_entries, clock)
        self._flights: TokenFlights[_Told] = TokenFlights(
            most_waiting=limits.most_waiting, seconds=limits.timeout_seconds
        )

    def authenticate(self, credentials: Credentials) -> Actor:
        """Return who the credentials belong to.

        All that wait for one token share one question. Failures to ask are not kept.

        Raises:
            Unauthenticated: there is no token, or Keystone does not accept it.
            KeystoneUnavailable: Keystone cannot be asked, or too many wait for it already.
        """
        if not _may_be_tokens(credentials):
            raise self._refusal()
        key = cache_key(credentials.token, credentials.service_token)
        actor = self._known.get(key)
        if actor is not None:
            return actor
        if self._unknown.get(key):
            raise self._refusal()
        told = self._shared(key, credentials)
        if told.is_restricted and told.request != _request_of(credentials):
            told = self._shared(_key_of_request(key, credentials), credentials)
        if told.failure:
            raise KeystoneUnavailable(told.failure)
        if told.actor is None:
            raise self._refusal()
        return told.actor

    def _shared(self, key: bytes, credentials: Credentials) -> _Told:
        """Return what Keystone says, asked once for all that wait for the same."""
        try:
            return self._flights.ask(key, lambda: self._asked(credentials))
        except TooManyWaitError:
            log.warning("keystone_wait_refused", most_waiting=self._limits.most_waiting)
            raise KeystoneUnavailable("too many requests wait for Keystone") from None
        except NoAnswerInTimeError:
            log.warning("keystone_slow", waited_seconds=self._limits.timeout_seconds)
            raise KeystoneUnavailable("Keystone does not answer in time") from None

    def _asked(self, credentials: Credentials) -> _Told:
        """Ask Keystone and remember what it says; runs in a thread of its own."""
        key = cache_key(credentials.token, credentials.service_token)
        limits, asked_at = self._limits, self._clock()
        request = _request_of(credentials)
        known = self._known.get(key)
        if known is not None:  # answered since the caller looked
            return _Told(request=request, actor=known)
        try:
            valid = self._validator.validate(credentials)
        except KeystoneUnavailable as error:
            return _Told(request=request, failure=error.message)
        if valid is None:
            kept_seconds = min(UNKNOWN_TOKEN_SECONDS, limits.cache_seconds)
            self._unknown.put(key, entry=True, until=asked_at + kept_seconds)
            return _Told(request=request)
        if not valid.is_restricted:
            until = min(asked_at + limits.cache_seconds, valid.expires_at)
            self._known.put(key, valid.actor, until)
        return _Told(request=request, actor=valid.actor, is_restricted=valid.is_restricted)

    def _refusal(self) -> Unauthenticated:
        return Unauthenticated("Unauthorized", challenge=self._challenge)


def _request_of(credentials: Credentials) -> tuple[str, str]:
    """Return what a restricted token may be good for."""
    return credentials.method, credentials.path


def _key_of_request(key: bytes, credentials: Credentials) -> bytes:
    """Return the key of a question about one request."""
    return key + "\n".join(_request_of(credentials)).encode("utf-8", "surrogateescape")


def _may_be_tokens(credentials: Credentials) -> bool:
    """Return whether Keystone may be asked: other text could not even be sent in a header."""
    has_token = TOKEN_TEXT.fullmatch(credentials.token) is not None
    service_token = credentials.service_token
    return has_token and (not service_token or TOKEN_TEXT.fullmatch(service_token) is not None)


class _NoCache:
    """What keystonemiddleware keeps tokens in: nothing, since its own memory has no bound."""

    def get(self, key: str) -> None:
        """Know nothing."""
        del key

    def set(self, key: str, entry: object, time: float = 0) -> None:
        """Keep nothing."""
        del key, entry, time


class MiddlewareValidator:
    """keystonemiddleware, configured in code; it remembers nothing, the authenticator does."""

    def __init__(self, options: KeystoneSettings) -> None:
        # An oslo.config object of our own: the global one would read files of its own choice.
        conf = cfg.ConfigOpts()
        conf([], project="headroom", default_config_files=[], default_config_dirs=[])
        plugin, login = login_options(options)
        loader: Any = loading.get_plugin_loader(plugin)  # Any: the library has no types
        conf.register_opts(loading.get_auth_plugin_conf_options(loader), group=SECTION)
        for name, entry in login.items():
            conf.set_override(name, entry, group=SECTION)
        self._protocol = AuthProtocol(
            _accepted,
            {"oslo_config_config": conf, "auth_type": plugin, **_middleware_options(options)},
        )

    def validate(self, credentials: Credentials) -> ValidToken | None:
        """Return what Keystone says of the credentials, None when it does not accept them.

        Raises:
            KeystoneUnavailable: Keystone cannot be asked, or does not accept ourselves.
        """
        request = webob.Request.blank("/", method=credentials.method)
        request.path_info = credentials.path
        request.environ[CACHE] = _NoCache()
        request.headers[TOKEN_HEADER] = credentials.token
        if credentials.service_token:
            request.headers[SERVICE_TOKEN_HEADER] = credentials.service_token
        try:
            response = request.get_response(self._protocol)
        except ClientException as error:
            log.error("keystone_unusable", error=type(error).__name__, detail=str(error))  # noqa: TRY400
            raise KeystoneUnavailable(UNUSABLE) from error
        if response.status_int == UNAUTHORIZED:
            return None
        if response.status_int != OK:
            log.error("keystone_unusable", status=response.status_int)
            raise KeystoneUnavailable(UNUSABLE)
        return _valid_token(request.environ)


def _accepted(environ: WSGIEnvironment, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a request that the middleware let through."""
    start_response("200 OK", [("Content-Length", "0")])
    return [b""]


def _valid_token(environ: WSGIEnvironment) -> ValidToken:
    token: Mapping[str, Any] = environ["keystone.token_info"]["token"]
    user, project = token["user"], token.get("project") or {}
    domain, user_domain = token.get("domain") or {}, user.get("domain") or {}
    project_domain = project.get("domain") or {}
    application_credential = token.get("application_credential") or {}
    name = f"{user.get('name', '')}@{user_domain.get('name', '')} {user['id']}"
    actor = Actor(
        name=name if len(name) <= LONGEST_ACTOR_NAME else str(user["id"]),
        roles=frozenset(role["name"] for role in token.get("roles") or ()),
        user_id=str(user["id"]),
        user_name=str(user.get("name", "")),
        user_domain_id=str(user_domain.get("id", "")),
        user_domain_name=str(user_domain.get("name", "")),
        project_id=str(project.get("id", "")),
        project_name=str(project.get("name", "")),
        project_domain_id=str(project_domain.get("id", "")),
        project_domain_name=str(project_domain.get("name", "")),
        domain_id=str(domain.get("id", "")),
        domain_name=str(domain.get("name", "")),
        system_scope="all" if (token.get("system") or {}).get("all") else "",
        is_admin_project=bool(token.get("is_admin_project")),
        service_roles=_service_roles(environ),
    )
    return ValidToken(
        actor=actor,
        expires_at=datetime.fromisoformat(token["expires_at"]).timestamp(),
        is_restricted=application_credential.get("access_rules") is not None,
    )


def _service_roles(environ: WSGIEnvironment) -> frozenset[str]:
    if environ.get("HTTP_X_SERVICE_IDENTITY_STATUS") != "Confirmed":
        return frozenset()
    roles = str(environ.get("HTTP_X_SERVICE_ROLES", "")).split(",")
    return frozenset(role for role in roles if role)


def _middleware_options(options: KeystoneSettings) -> dict[str, object]:
    """Return the options of ``[keystone_authtoken]`` that our settings stand for."""
    return {
        "www_authenticate_uri": options.public_url or options.auth_url,
        "auth_version": "v3",
        "interface": options.interface,
        "region_name": options.region_name or None,
        "cafile": options.ca_file or None,
        "certfile": options.cert_file or None,
        "keyfile": options.key_file or None,
        "http_connect_timeout": max(1, round(options.timeout_seconds)),
        "http_request_max_retries": options.connect_retries,
        "cache": CACHE,
        "include_service_catalog": bool(options.service_type),
        "service_token_roles": list(options.service_token_roles),
        "service_token_roles_required": True,
        "service_type": options.service_type or None,
    }


_current: tuple[KeystoneSettings, KeystoneAuthenticator] | None = None
_current_lock = threading.Lock()


def current_authenticator() -> KeystoneAuthenticator:
    """Return the authenticator of this process for the present settings, made when first needed."""
    global _current  # noqa: PLW0603 - one per process
    options: KeystoneSettings = settings.HEADROOM.keystone
    known = _current
    if known is not None and known[0] is options:
        return known[1]
    with _current_lock:
        if _current is None or _current[0] is not options:
            _current = (options, make_authenticator(options))
        return _current[1]


def make_authenticator(options: KeystoneSettings) -> KeystoneAuthenticator:
    """Return an authenticator that asks the Keystone of some settings."""
    return KeystoneAuthenticator(
        MiddlewareValidator(options),
        challenge=f'Keystone uri="{options.public_url or options.auth_url}"',
        limits=TokenLimits(
            cache_seconds=options.token_cache_seconds,
            cache_entries=options.token_cache_entries,
            most_waiting=options.most_waiting,
            timeout_seconds=options.timeout_seconds,
        ),
    )
