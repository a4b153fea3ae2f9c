"""Orders about hosts and agents from lists of the admin, each with a reason (spec hosts, D.13)."""

from __future__ import annotations

import glob
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from unfold.forms import ActionForm

from commitments.services.evicting import evict_slots
from console.base import PageData, request_actor
from console.links import find_url, list_url
from console.pages import show_page
from core.text import plural
from hosts.agents.enrolment import create_token, revoke_key, revoke_token
from hosts.agents.leases import fence
from hosts.agents.models import HostAgent, HostKey, KeyState
from hosts.agents.modes import decommission
from hosts.agents.order_views import LONGEST_REASON
from hosts.models import Maintenance
from hosts.services.host_orders import HostOrder, change_host
from journal.actors import Actor
from journal.clock import database_now
from journal.errors import HeadroomError
from journal.middleware import request_id_of

#: Called with the name of a row, who orders, the request and the reason; returns what was done.
Order = Callable[[str, Actor, str, str], str]
#: What the admin calls with its page, the request and the chosen rows.
Action = Callable[[Any, HttpRequest, QuerySet[Any]], None]  # Any: rows of any model

#: For how long a token of the admin lets its host enrol.
TOKEN_LIFETIME: Final = timedelta(hours=1)
MOST_TOKENS: Final = 100


class ReasonForm(ActionForm):  # type: ignore[misc]  # the theme has no types
    """What to do with the chosen rows, and why."""

    reason = forms.CharField(
        label="because",
        required=False,
        max_length=LONGEST_REASON,
        widget=forms.TextInput(attrs={"class": "bg-white text-base-900 px-2 py-1 rounded-default"}),
    )


def _order(description: str, *, names: str = "name") -> Callable[[Order], Action]:
    """Make an action of lists of an order.

    It is carried out for rows one by one; a refusal is told and stops no other.

    Args:
        description: What the list calls it.
        names: Column of what the order is called with.
    """

    def action_of(order: Order) -> Action:
        @admin.action(description=description, permissions=["order"])
        @wraps(order)  # the name is that of the action
        def carry_out(_: object, request: HttpRequest, rows: QuerySet[Any]) -> None:
            reason = _reason(request)
            for name in map(str, rows.values_list(names, flat=True) if reason else ()):
                try:
                    done = order(name, request_actor(request), request_id_of(request), reason)
                except HeadroomError as refused:
                    messages.warning(request, f"{name}: {refused.message}")
                else:
                    messages.success(request, f"{name}: {done}")

        return carry_out

    return action_of


def _reason(request: HttpRequest) -> str:
    """Return why an order is given; without one it is told that it needs one."""
    reason = request.POST.get("reason", "").strip()
    if not reason:
        messages.error(request, "Orders need a reason: say why beside the choice.")
    return reason


@_order("Fence: end what it was told, at once", names="host_name")
def fence_agents(name: str, actor: Actor, request_id: str, reason: str) -> str:
    """End the epoch of an agent."""
    epoch = fence(name, actor=actor, request_id=request_id, reason=reason)
    return f"its agent is down, its epoch is {epoch}"


@_order("Have nothing more to do with it", names="host_name")
def decommission_agents(name: str, actor: Actor, request_id: str, reason: str) -> str:
    """Decommission an agent that has nothing any more."""
    decommission(name, actor=actor, request_id=request_id, reason=reason)
    return "its agent is told with its next request that this is the end"


@_order("Revoke at once", names="kid")
def revoke_keys(kid: str, actor: Actor, request_id: str, reason: str) -> str:
    """Take nothing more that a key signs."""
    pk = HostKey.objects.get(kid=kid).pk
    revoke_key(pk=pk, actor=actor, request_id=request_id, reason=reason)
    return "nothing that it signs is taken any more; its host may enrol anew with a token"


@_order("Revoke: let nobody enrol with it", names="pk")
def revoke_tokens(pk: str, actor: Actor, request_id: str, reason: str) -> str:
    """End a token."""
    revoke_token(pk=int(pk), actor=actor, request_id=request_id, reason=reason)
    return "no agent enrols with it any more; those that did stay"


@_order("Take out of service (maintenance)")
def start_maintenance(name: str, actor: Actor, request_id: str, reason: str) -> str:
    """Set manual maintenance."""
    order = HostOrder(maintenance=Maintenance.MANUAL, maintenance_reason=reason)
    change_host(name, order, actor=actor, request_id=request_id, reason=reason)
    return "it takes no new VMs and slots"


@_order("Bring back into service")
def end_maintenance(name: str, actor: Actor, request_id: str, reason: str) -> str:
    """End maintenance."""
    order = HostOrder(maintenance=Maintenance.NONE)
    change_host(name, order, actor=actor, request_id=request_id, reason=reason)
    return "it is in service again"


@_order("Take out for good (termination)")
def start_termination(name: str, actor: Actor, request_id: str, reason: str) -> str:
    """Begin to take a host out for good."""
    order = HostOrder(maintenance=Maintenance.TERMINATION, maintenance_reason=reason)
    change_host(name, order, actor=actor, request_id=request_id, reason=reason)
    return "it is taken out for good: its page says what is still on it"


@_order("Keep after all (end termination)")
def end_termination(name: str, actor: Actor, request_id: str, reason: str) -> str:
    """Keep a host that was to be taken out for good."""
    for maintenance in (Maintenance.HA, Maintenance.NONE):  # nothing but ha ends termination
        order = HostOrder(maintenance=maintenance)
        change_host(name, order, actor=actor, request_id=request_id, reason=reason)
    return "it stays, and is in service again"


@_order("Move slots without VMs elsewhere")
def evict_hosts(name: str, actor: Actor, request_id: str, reason: str) -> str:
    """Evict the slots of a host in maintenance."""
    found = evict_slots(name, now=database_now(), actor=actor, request_id=request_id, reason=reason)
    return (
        f"{plural(found.moved, 'slot')} moved, {found.without_place:,} found no place, "
        f"{found.with_vms:,} have VMs"
    )


@admin.action(description="New token for its agent, shown once", permissions=["token"])
def new_tokens(
    _: admin.ModelAdmin[Any], request: HttpRequest, rows: QuerySet[Any]
) -> HttpResponse | None:
    """Make a token for one enrolment of each host, and show it this once."""
    reason = _reason(request)
    column = "host_name" if rows.model is HostAgent else "name"
    names = list(rows.order_by(column).values_list(column, flat=True)[: MOST_TOKENS + 1])
    if len(names) > MOST_TOKENS:
        messages.error(request, f"Tokens are made for {MOST_TOKENS} hosts at most at once.")
    if not reason or len(names) > MOST_TOKENS:
        return None
    active = HostKey.objects.filter(agent__host_name__in=names, state=KeyState.ACTIVE)
    kids = dict(active.values_list("agent__host_name", "kid"))
    tokens = []
    for name in names:
        try:
            token = create_token(
                name_glob=glob.escape(name),
                uses=1,
                lifetime=TOKEN_LIFETIME,
                actor=request_actor(request),
                request_id=request_id_of(request),
                reason=reason,
            )
        except HeadroomError as refused:
            messages.warning(request, f"{name}: {refused.message}")
            continue
        before = f"its key {kids[name]} has to be revoked" if name in kids else ""
        tokens.append(
            {"host": name, "url": find_url("host", name), "token": token, "before": before}
        )
    return show_page(
        request,
        "admin/tokens_page.html",
        title="New tokens",
        model=rows.model,
        page=PageData(
            tone="ok" if tokens else "warn",
            title=f"{plural(len(tokens), 'token')} made",
            sentence="Each is for one enrolment of its host within an hour. Only their digests are "
            "kept: nobody can show them again.",
            tokens=tokens,
        ),
        crumbs=(("Hosts", list_url("hosts.host")), ("New tokens", "")),
    )
