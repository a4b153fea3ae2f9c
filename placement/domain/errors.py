"""Errors of the Placement API and their bodies (spec placement, 2.5)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Final

from journal.errors import HeadroomError

UNDEFINED: Final = "placement.undefined_code"
CONCURRENT_UPDATE: Final = "placement.concurrent_update"
INVENTORY_IN_USE: Final = "placement.inventory.inuse"
DUPLICATE_NAME: Final = "placement.duplicate_name"
PROVIDER_IN_USE: Final = "placement.resource_provider.inuse"
PROVIDER_HAS_CHILDREN: Final = "placement.resource_provider.cannot_delete_parent"
PROVIDER_NOT_FOUND: Final = "placement.resource_provider.not_found"
QUERY_DUPLICATE_KEY: Final = "placement.query.duplicate_key"
QUERY_BAD_VALUE: Final = "placement.query.bad_value"
QUERY_MISSING_VALUE: Final = "placement.query.missing_value"

#: Codes appear in bodies from this minor version on.
CODES_SINCE: Final = 23

#: The sentence of a status, in front of the particular message.
SENTENCES: Final[Mapping[int, str]] = MappingProxyType(
    {
        HTTPStatus.BAD_REQUEST: (
            "The server could not comply with the request since it is either malformed or "
            "otherwise incorrect."
        ),
        HTTPStatus.UNAUTHORIZED: "This server could not verify that you may see this resource.",
        HTTPStatus.FORBIDDEN: "Access was denied to this resource.",
        HTTPStatus.NOT_FOUND: "The resource could not be found.",
        HTTPStatus.NOT_ACCEPTABLE: "The resource could not be given in a form you accept.",
        HTTPStatus.CONFLICT: "There was a conflict when trying to complete your request.",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body of your request was too large.",
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The media type of the request is not supported.",
        HTTPStatus.INTERNAL_SERVER_ERROR: "The server failed to answer the request.",
        HTTPStatus.BAD_GATEWAY: "The Placement service behind this one did not answer.",
        HTTPStatus.SERVICE_UNAVAILABLE: "The server cannot answer the request now.",
        HTTPStatus.GATEWAY_TIMEOUT: "The Placement service behind this one took too long.",
    }
)


class PlacementError(HeadroomError):
    """A refusal with an HTTP status, a code of Placement and the particular message.

    Attributes:
        wire_code: What clients of Placement are told; ``code`` is ours, for logs.
        status: HTTP status of the answer.
        headers: Headers that the answer carries besides the usual ones.
        extra: Keys that the error object carries besides the usual ones.
        has_code: Whether the body may name a code at all.
    """

    code = "placement_error"
    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    has_code = True

    def __init__(
        self,
        message: str = "",
        *,
        wire_code: str = UNDEFINED,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
        **facts: object,
    ) -> None:
        super().__init__(message, code=None, **facts)
        self.wire_code = wire_code
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    @property
    def title(self) -> str:
        """The reason phrase of the status."""
        return HTTPStatus(self.status).phrase

    @property
    def detail(self) -> str:
        """The sentence of the status, an empty line, and the particular message on one line.

        Clients show the last line alone.
        """
        return f"{SENTENCES.get(self.status, self.title)}\n\n{self.message}".strip()


class BadRequest(PlacementError):  # noqa: N818 - named as its status
    """The request is malformed or says something impossible."""

    code = "placement_bad_request"
    status = HTTPStatus.BAD_REQUEST


class Unauthorized(PlacementError):  # noqa: N818 - named as its status
    """The caller did not say who it is, or nobody knows it."""

    code = "placement_unauthorized"
    status = HTTPStatus.UNAUTHORIZED
    has_code = False


class PolicyDenied(PlacementError):  # noqa: N818 - a state of the caller
    """The caller is known but the policy does not let it."""

    code = "placement_policy_denied"
    status = HTTPStatus.FORBIDDEN


class NotFound(PlacementError):  # noqa: N818 - named as its status
    """No such path, or no such object."""

    code = "placement_not_found"
    status = HTTPStatus.NOT_FOUND


class MethodNotAllowed(PlacementError):  # noqa: N818 - named as its status
    """The path exists but not with this method."""

    code = "placement_method_not_allowed"
    status = HTTPStatus.METHOD_NOT_ALLOWED

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(
            "The method specified is not allowed for this resource.", headers={"Allow": allowed}
        )
        self.method = method

    @property
    def detail(self) -> str:
        """Name the method."""
        return f"The method {self.method} is not allowed for this resource.\n\n{self.message}"


class NotAcceptable(PlacementError):  # noqa: N818 - named as its status
    """The answer cannot have the form, or the version, that was asked for."""

    code = "placement_not_acceptable"
    status = HTTPStatus.NOT_ACCEPTABLE


class Conflict(PlacementError):  # noqa: N818 - named as its status
    """The state does not allow it now, or another writer came first."""

    code = "placement_conflict"
    status = HTTPStatus.CONFLICT


class PayloadTooLarge(PlacementError):  # noqa: N818 - named as its status
    """The body is larger than the server takes."""

    code = "placement_body_too_large"
    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class BodyInChunks(PlacementError):  # noqa: N818 - named for what it refuses
    """The body does not say how long it will be."""

    code = "placement_length_required"
    status = HTTPStatus.LENGTH_REQUIRED


class UnsupportedMediaType(PlacementError):  # noqa: N818 - named as its status
    """The body is not JSON."""

    code = "placement_unsupported_media_type"
    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class ServiceUnavailable(PlacementError):  # noqa: N818 - named as its status
    """The server cannot answer now; the same request may succeed a little later."""

    code = "placement_unavailable"
    status = HTTPStatus.SERVICE_UNAVAILABLE


class UpstreamFailed(PlacementError):  # noqa: N818 - says what happened
    """The Placement that a request was handed on to did not answer it."""

    code = "placement_upstream_failed"
    status = HTTPStatus.BAD_GATEWAY


class UpstreamUnreachable(UpstreamFailed):
    """It took no connection, so that nothing was sent."""

    code = "placement_upstream_unreachable"


class UpstreamTooSlow(PlacementError):  # noqa: N818 - says what happened
    """The Placement that a request was handed on to did not answer it in time."""

    code = "placement_upstream_slow"
    status = HTTPStatus.GATEWAY_TIMEOUT


class UpstreamAway(PlacementError):  # noqa: N818 - says what happened
    """The Placement that requests are handed on to failed often, and is left alone for a while."""

    code = "placement_upstream_away"
    status = HTTPStatus.SERVICE_UNAVAILABLE


def error_body(error: PlacementError, *, minor: int | None, request_id: str) -> dict[str, object]:
    """Return the body of an error answer.

    Args:
        error: What went wrong.
        minor: Minor part of the negotiated version; ``None`` when there is none yet.
        request_id: Id of the request.

    Source: spec placement, section 2.5.
    """
    described: dict[str, object] = {
        "status": int(error.status),
        "title": error.title,
        "detail": error.detail,
        "request_id": request_id,
        **error.extra,
    }
    if minor is not None and minor >= CODES_SINCE and error.has_code:
        described["code"] = error.wire_code
    return {"errors": [described]}
