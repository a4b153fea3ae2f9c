"""``/admin/drill/``: what the loss of a rack, an aggregate, a zone or some hosts would do now."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import numpy as np
from django import forms
from django.db.models import F, Func, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode

from capacity.host_table import current_host_table
from console.base import TONE_ICONS, PageData
from console.charts import natural
from console.failover.loss import vm_names
from console.hosts.columns import CLOUD_EMPTY
from console.links import find_url, list_url
from console.pages import LongSelect, answered, check_view, show_page
from core.text import count_text, plural
from failover.choices import reason_words
from failover.domain.drill import Unprotected, UnprotectedReason
from failover.domain.losses import Loss, loss_of
from failover.domain.zone_columns import ZoneSnapshot
from failover.drill_models import FailureDrill
from failover.selectors.drills import zone_snapshot
from failover.selectors.losses import READ_ALONE, loss_snapshot
from hosts.models import Aggregate, Host, Instance
from journal.clock import database_now
from journal.heavy import computed_apart, heavy_question

VMS_SHOWN: Final = 200
HOSTS_SHOWN: Final = 100
LONGEST_LIST: Final = 20_000
#: So many failing hosts of a zone are read by name; its tables are read as a whole for more.


def drill_url(**asked: str) -> str:
    """Return the address that asks what the loss of a ``rack``, ``aggregate`` or ``zone`` does."""
    return f"{reverse('headroom_drill')}?{urlencode(asked)}"


class FailureForm(forms.Form):
    """What fails together: all that is named, within the zone if one is chosen."""

    rack = forms.ChoiceField(label="Rack", required=False, widget=LongSelect)
    aggregate = forms.ChoiceField(label="Aggregate", required=False, widget=LongSelect)
    hosts = forms.CharField(
        label="Hosts, by name, with commas", required=False, max_length=LONGEST_LIST
    )
    zone = forms.ChoiceField(label="Zone; alone: all of it", required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Read what can be chosen."""
        super().__init__(*args, **kwargs)
        table = current_host_table()
        racks = np.unique(table.building_block[table.is_known]).tolist()
        zones = np.unique(table.zone[table.is_known]).tolist()
        aggregates = Aggregate.objects.order_by("name", "uuid").values_list("uuid", "name")
        self._offer("rack", ((table.building_blocks[code],) * 2 for code in racks))
        self._offer("zone", ((table.zones[code],) * 2 for code in zones))
        self._offer("aggregate", aggregates)

    def _offer(self, name: str, pairs: Any) -> None:
        offered = sorted(((key, words) for key, words in pairs if key), key=_by_words)
        field: Any = self.fields[name]
        field.choices = [("", "any"), *offered]

    def clean(self) -> dict[str, Any]:
        """Find the hosts; they stand in ``rows`` from then on, names and zones in ``failed``."""
        said: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return said
        names = {name.strip() for name in said["hosts"].split(",")} - {""}
        wanted = Q(name__in=names)
        if said["rack"]:
            wanted |= Q(building_block=said["rack"])
        if said["aggregate"]:
            chosen = Aggregate.objects.filter(uuid=said["aggregate"])
            members = chosen.values_list(Func(F("host_names"), function="unnest"))
            wanted |= Q(name__in=members)
        if said["zone"] and not (names or said["rack"] or said["aggregate"]):
            wanted = Q()
        rows = Host.objects.filter(wanted).order_by("name")
        if said["zone"]:
            rows = rows.filter(zone=said["zone"])
        said["rows"] = rows
        said["failed"] = list(rows.values_list("name", "zone"))
        unknown = sorted(names - {name for name, _ in said["failed"]})
        if unknown:
            where = f" in {said['zone']}" if said["zone"] else ""
            self.add_error("hosts", f"No such host{where}: {', '.join(unknown[:10])}")
        elif not said["failed"]:
            self.add_error(None, "No host is in all that is chosen")
        return said


def _by_words(pair: tuple[str, str]) -> tuple[Any, ...]:
    return natural(pair[1])


def drill_view(request: HttpRequest) -> HttpResponse:
    """Show what would happen, if it is said what fails; nothing is changed."""
    check_view(request, FailureDrill, Host, Instance)
    is_asked = any(request.GET.get(name) for name in FailureForm.base_fields)
    form = FailureForm(request.GET if is_asked else None)
    page = PageData(
        form=form,
        answer=None,
        problem="" if is_asked or Host.objects.exists() else f"No host is known. {CLOUD_EMPTY}",
        nightly_url=list_url("failover.failuredrill"),
    )
    if is_asked and form.is_valid():
        failed: list[tuple[str, str]] = form.cleaned_data["failed"]
        loss, page.problem = answered(partial(_loss, failed))
        if loss is not None:
            page.answer = _answer(loss, form.cleaned_data["rows"])
    return show_page(
        request,
        "admin/what_dies_page.html",
        title="What if this dies?",
        model=FailureDrill,
        page=page,
        crumbs=(("Drills", list_url("failover.failuredrill")), ("What if", "")),
    )


def _loss(failed: Sequence[tuple[str, str]]) -> Loss:
    """Return what the loss does: rows of its zones are read here, all else a child does."""
    names = [name for name, _ in failed]
    with heavy_question():
        now = database_now()
        zones = [
            _snapshot(zone, {name for name, place in failed if place == zone}, now)
            for zone in sorted({zone for _, zone in failed})
        ]
        return computed_apart(partial(loss_of, zones, names, most=VMS_SHOWN))


def _snapshot(zone: str, failed: Collection[str], now: datetime) -> ZoneSnapshot:
    """Return what the failing hosts of a zone touch, all of it where these are many."""
    if len(failed) > READ_ALONE:
        return zone_snapshot(zone, now=now)
    return loss_snapshot(zone, failed, now=now)


def _answer(loss: Loss, hosts: QuerySet[Host]) -> PageData:
    rows = Instance.objects.filter(host__in=hosts.order_by().values("pk"))
    vms = rows.count()
    uuids = [row.vm for row in loss.shown]
    on_host = dict(rows.filter(openstack_id__in=uuids).values_list("openstack_id", "host__name"))
    names = vm_names(uuids)
    tone = "bad" if loss.lost else "ok"
    targets = sorted(loss.taken.items(), key=lambda pair: (-pair[1], natural(pair[0])))
    return PageData(
        tone=tone,
        icon=TONE_ICONS[tone],
        title=(
            f"{plural(loss.lost, 'VM')} of {vms:,} would not survive"
            if loss.lost
            else "Every VM that is owed a failover slot has one to go to"
        ),
        facts=(
            ("Hosts that fail", count_text(len(loss.failed_hosts))),
            ("VMs on them", count_text(vms)),
            ("have a slot to go to", count_text(loss.saved)),
            ("are owed one and get none", count_text(loss.lost)),
            ("are owed none", count_text(max(0, vms - loss.saved - loss.lost))),
        ),
        reasons=sorted((reason_words(reason), count_text(n)) for reason, n in loss.reasons.items()),
        lost=[
            PageData(
                name=names.get(row.vm, row.vm),
                url=find_url("vm", row.vm),
                host=on_host.get(row.vm, ""),
                host_url=find_url("host", on_host[row.vm]) if row.vm in on_host else "",
                slots=f"{row.slots} of {row.required}",
                why=_why(row),
            )
            for row in loss.shown
        ],
        lost_hidden=loss.lost - len(loss.shown),
        targets=[
            (name, find_url("host", name), plural(count, "VM"))
            for name, count in targets[:HOSTS_SHOWN]
        ],
        targets_hidden=max(0, len(targets) - HOSTS_SHOWN),
        hosts=[(name, find_url("host", name)) for name in loss.failed_hosts[:HOSTS_SHOWN]],
        hosts_hidden=max(0, len(loss.failed_hosts) - HOSTS_SHOWN),
    )


def _why(row: Unprotected) -> str:
    if row.slots and row.reason is UnprotectedReason.NO_SLOTS:
        return "all of their zone fails, and their slots are in it"
    return reason_words(row.reason.value)
