"""Asking the other Placement for more than the request of a client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

import orjson
import structlog

from core.conf import headroom
from journal.errors import HeadroomError
from placement.domain.errors import ServiceUnavailable, UpstreamFailed
from placement.domain.schemas import CONSUMER_GENERATIONS_SINCE
from placement.gateway.current import current_upstream
from placement.gateway.headers import Header
from placement.gateway.upstream import UpstreamAnswer

log = structlog.get_logger(__name__)

OK: Final = 200
UNAUTHORIZED: Final = 401


class Asks(Protocol):
    """Sends a request of a version to the other Placement, by somebody's token."""

    def __call__(self, method: str, target: str, minor: int, body: bytes = b"") -> UpstreamAnswer:
        """Return its answer."""


class Held(NamedTuple):
    """What a consumer holds somewhere.

    Attributes:
        resources: Amount by class, by provider.
        generation: The consumer's; None if it holds nothing.
    """

    resources: Mapping[str, Mapping[str, int]]
    generation: int | None


class NoAccountError(HeadroomError):
    """Nothing says by which account the other Placement is asked."""

    code = "placement_gateway_account"


def headers_of(token: str, minor: int | None, body: bytes) -> Sequence[Header]:
    """Return the headers of a request of our own."""
    headers = [("X-Auth-Token", token), ("Accept", "application/json")]
    if minor is not None:
        headers.append(("OpenStack-API-Version", f"placement 1.{minor}"))
    return [*headers, *body_headers(body)]


def body_headers(body: bytes) -> Sequence[Header]:
    """Return the headers that a body needs."""
    length = [("Content-Length", str(len(body)))]
    return [("Content-Type", "application/json"), *length] if body else length


def by_service_account() -> Asks:
    """Return what asks by the account of the settings.

    Raises:
        NoAccountError: there is none.
    """
    token = token_of(headroom().gateway)

    def ask(method: str, target: str, minor: int, body: bytes = b"") -> UpstreamAnswer:
        upstream = current_upstream()
        for is_refused in (False, True):
            headers = headers_of(token(is_refused), minor, body)
            answer = upstream.send(method, target, headers=headers, body=body)
            if answer.status != UNAUTHORIZED:
                break
        return answer

    return ask


def token_of(gateway: Any) -> Callable[[bool], str]:  # Any: settings of a floor above
    """Return what gives tokens; it is told whether the last one was refused.

    While Keystone cannot be asked, it raises ServiceUnavailable.

    Raises:
        NoAccountError: neither an account nor a token is set, or the account cannot be used.
    """
    if gateway.token is not None:
        fixed = gateway.token.get_secret_value()
        return lambda _: fixed
    if not gateway.cloud:
        raise NoAccountError("set HEADROOM_GATEWAY__CLOUD (or HEADROOM_GATEWAY__TOKEN)")
    import openstack  # noqa: PLC0415 - takes half a second
    from keystoneauth1.exceptions import ClientException  # noqa: PLC0415 - as above
    from openstack.exceptions import SDKException  # noqa: PLC0415 - as above

    try:
        session = openstack.connect(
            cloud=gateway.cloud, api_timeout=gateway.timeout_seconds
        ).session
    except (SDKException, ClientException) as error:
        raise NoAccountError(f"cloud {gateway.cloud!r}: {error}") from error
    lock = threading.Lock()

    def token(is_refused: bool) -> str:  # noqa: FBT001 - a callable of one argument
        try:
            with lock:
                if is_refused:
                    session.invalidate()
                return cast("str", session.get_token())
        except (SDKException, ClientException) as error:
            log.warning("gateway_no_token", error=str(error))
            raise ServiceUnavailable(
                "Keystone gives no token for the account of the gateway: see the log",
                headers={"Retry-After": "5"},
            ) from error

    return token


def decoded(answer: UpstreamAnswer) -> Any:  # Any: decoded JSON
    """Return the document of an answer.

    Raises:
        UpstreamFailed: it is no JSON.
    """
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise UpstreamFailed("the other Placement answered no JSON") from error


def held_there(ask: Asks, consumer: str) -> Held:
    """Return what a consumer holds there.

    Raises:
        RefusedError: it answered something else.
    """
    answer = ask("GET", f"/allocations/{consumer}", CONSUMER_GENERATIONS_SINCE)
    if answer.status != OK:
        raise RefusedError(answer)
    document = decoded(answer)
    try:
        resources = {
            provider: {name: int(amount) for name, amount in one["resources"].items()}
            for provider, one in document["allocations"].items()
        }
        return Held(resources, int(document["consumer_generation"]) if resources else None)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UpstreamFailed("the other Placement answered allocations of no known form") from error


class RefusedError(Exception):
    """The other Placement answered something that its client has to see.

    Attributes:
        answer: What.
    """

    def __init__(self, answer: UpstreamAnswer) -> None:
        super().__init__(f"it answered {answer.status}")
        self.answer = answer
