"""Rules that the gateway applies before anybody answers (spec placement, 7.5, 8.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, ClassVar, Final

import orjson
import structlog
from django.http import HttpRequest, HttpResponse

from placement.access import caller_of
from placement.api.base import REQUEST_ID_KEY, PlacementView
from placement.api.errors import as_placement_error
from placement.api.rendering import json_answer
from placement.api.urls import Resolver, View
from placement.domain.access_rules import ProjectScope, Rule, may_pass, rule_for
from placement.domain.errors import PlacementError, PolicyDenied
from placement.domain.querystring import grouped_values, parsed_pairs
from placement.gateway.again import request_again
from placement.gateway.modes import ALIASES, MODE_TAKEN, Mode

log = structlog.get_logger(__name__)

MODE_HEADER: Final = "HTTP_X_CORTEX_FEATURE_MODE"
#: Who may choose a mode for a request.
CHOOSING_ROLES: Final = frozenset({"admin", "service"})
MOST_LOOKED_INTO: Final = 1 << 20


class RuleDenied(PolicyDenied):
    """A rule of the gateway does not let the caller."""

    code = "placement_gateway_denied"


class RefusedView(PlacementView):
    """Answers a request that the rules do not let through."""

    is_public: ClassVar[bool] = True
    error: PlacementError = RuleDenied()

    def _admit(self) -> None:
        self._check_host()
        raise self.error

    def refusal(self, error: PlacementError) -> HttpResponse:
        """Return the answer to an error, in the gateway's own form if its rules say no."""
        if not isinstance(error, RuleDenied):
            return super().refusal(error)
        status = HTTPStatus(error.status)
        told = {"code": int(status), "title": status.phrase, "message": error.message}
        return json_answer({"error": told}, status=status)


def guarded(resolve: Resolver, rules: tuple[Rule, ...]) -> Resolver:
    """Return what finds the view of a path behind some rules.

    Args:
        resolve: Finds the view of a path.
        rules: In their order; without any everything passes.
    """
    if not rules:
        return resolve

    def resolve_guarded(path: str) -> tuple[View, Mapping[str, str]]:
        view, items = resolve(path)

        def serve(request: HttpRequest, **given: str) -> HttpResponse:
            try:
                passed = _passed(request, f"/{path}", rules)
            except Exception as error:  # noqa: BLE001 - every error has an answer of its own
                request_id = str(request.META.get(REQUEST_ID_KEY, ""))
                told = as_placement_error(error, request_id=request_id)
                return RefusedView.as_view(error=told)(request)
            return view(passed, **given)

        return serve, items

    return resolve_guarded


def _passed(request: HttpRequest, path: str, rules: tuple[Rule, ...]) -> HttpRequest:
    """Return the request as it goes on.

    Raises:
        Unauthorized: nobody knows who asks.
        RuleDenied: no rule lets it pass.
        NotReady: Keystone cannot be asked.
    """
    rule = rule_for(rules, str(request.method), path)
    if rule is None:
        raise RuleDenied("No rule of the gateway is about this request.")
    if not rule.roles:
        return request
    actor = caller_of(request).actor
    look = _Look(request)
    if not may_pass(rule, actor.roles, actor.project_id, look.named):
        raise RuleDenied("The rules of the gateway let no role of this token pass.")
    return look.request


class _Look:
    """Finds the project that a request names, and keeps its body readable."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self._document: Any = None  # Any: decoded JSON
        self._is_read = False

    def named(self, scope: ProjectScope) -> str:
        """Return the project that the request names; empty if it names none."""
        if scope.source == "query":
            pairs = parsed_pairs(self.request.META.get("QUERY_STRING", ""))
            return grouped_values(pairs).get(scope.name, [""])[-1]
        if not self._is_read:
            self._read()
        found = self._document.get(scope.name) if isinstance(self._document, dict) else None
        return found if isinstance(found, str) else ""

    def _read(self) -> None:
        self._is_read = True
        length = str(self.request.META.get("CONTENT_LENGTH") or "0")
        if not length.isdecimal() or int(length) > MOST_LOOKED_INTO:
            return
        body = self.request.read()
        self.request = request_again(self.request, body)
        try:
            self._document = orjson.loads(body)
        except orjson.JSONDecodeError:
            self._document = None


def overridable(resolve: Resolver, by_mode: Mapping[Mode, Callable[[], Resolver]]) -> Resolver:
    """Return what finds the view of a path in the mode that some callers may choose.

    Answers in a chosen mode say so, in the header that chose it.

    Args:
        resolve: Finds the view in the mode of the settings.
        by_mode: Makes what finds it in a mode.
    """
    made: dict[Mode, Resolver] = {}

    def resolve_chosen(path: str) -> tuple[View, Mapping[str, str]]:
        view, items = resolve(path)

        def serve(request: HttpRequest, **given: str) -> HttpResponse:
            mode = _chosen_mode(request)
            if mode is None:
                return view(request, **given)
            if mode not in made:
                made[mode] = by_mode[mode]()
            response = made[mode](path)[0](request, **given)
            response.headers[MODE_TAKEN] = mode
            return response

        return serve, items

    return resolve_chosen


def _chosen_mode(request: HttpRequest) -> Mode | None:
    word = request.META.get(MODE_HEADER)
    if word is None:
        return None
    try:
        mode = ALIASES.get(word) or Mode(word)
    except ValueError:
        log.warning("gateway_mode_ignored", mode=word[:64])
        return None
    try:
        roles = caller_of(request).actor.roles
    except Exception as error:  # noqa: BLE001 - whoever answers says what is wrong with the token
        log.info("gateway_mode_ignored", mode=word[:64], error=str(error))
        return None
    return mode if roles & CHOOSING_ROLES else None
