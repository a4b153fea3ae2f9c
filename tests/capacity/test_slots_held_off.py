"""Hosts whose agents are silent or unwell get no new slots; VMs go on (spec hosts, C.3, D.3)."""

from __future__ import annotations

import pytest

from capacity.host_table import current_host_table
from hosts.agents.models import AgentMode, HostAgent, HostLease
from hosts.models import Host
from scheduling.engine import SLOT_PIPELINE
from tests.factories import make_host
from tests.hosts.agents.agents import report, signed
from tests.hosts.agents.test_leases import beat, pass_time, swept, up
from tests.process_tables import load_host_table

UNWELL = [
    {"check": "ntp", "ok": False, "message": "offset 900 ms"},
    {"check": "disk", "ok": True, "message": ""},
]


def held_off() -> dict[str, str]:
    return dict(Host.objects.exclude(slots_held_off="").values_list("name", "slots_held_off"))


def takes_slots() -> list[str]:
    table = current_host_table()
    assert list(load_host_table().takes_slots) == list(table.takes_slots)
    assert all(table.state_ok)
    return sorted(name for name, takes in zip(table.names, table.takes_slots, strict=True) if takes)


@pytest.mark.django_db(transaction=True)
def test_a_host_that_is_silent_or_unwell_takes_no_slots_until_it_is_heard_and_well() -> None:
    identity = up("h1")
    make_host("h2")
    assert takes_slots() == ["h1", "h2"]
    pass_time(31)
    swept()
    assert (held_off(), takes_slots()) == ({"h1": "its agent is suspect"}, ["h2"])

    beat(identity)
    signed(identity, report(health=UNWELL)).send()
    swept()
    assert (held_off(), takes_slots()) == ({"h1": "ntp: offset 900 ms"}, ["h2"])
    HostAgent.objects.update(mode=AgentMode.NONE)
    swept()
    assert held_off() == {}
    HostAgent.objects.update(mode=AgentMode.OBSERVE)
    signed(identity, report(health=[])).send()
    swept()
    assert (held_off(), takes_slots()) == ({}, ["h1", "h2"])
    assert "filter_takes_slots" in [step.name for step in SLOT_PIPELINE.filters]


@pytest.mark.django_db(transaction=True)
def test_the_silence_of_most_agents_holds_no_slots_off() -> None:
    for number in range(5):
        up(f"h{number}")
    HostLease.objects.filter(agent__host_name__in=["h0", "h1"]).update(liveness="suspect")
    swept()
    assert sorted(held_off()) == ["h0", "h1"]
    HostLease.objects.update(liveness="suspect")
    swept()
    assert held_off() == {}
