"""Several clients, lists and tasks at once: claims are the ledger at every instant."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from tests.claim_life import COMMITMENTS, FLAVORS, HOSTS, VMS, Cloud, assert_sound
from tests.concurrency.test_change_races import on_own_connection
from tests.placement.client import placement_settings

pytestmark = pytest.mark.django_db(transaction=True)

CLIENTS = 6
MOVES_EACH = 25
CHOICES: dict[str, tuple[Any, ...]] = {
    "vm": VMS,
    "one": VMS,
    "other": VMS,
    "flavor": tuple(FLAVORS),
    "host": tuple(HOSTS),
    "uuid": tuple(COMMITMENTS),
    "gib": tuple(range(9)),
    "state": ("up", "up", "down"),
    "age": (0, 1, 3),
    "minutes": (0, 20, 90),
    "all_of_them": (True, False),
}
#: How often a move is chosen, and what it needs.
MOVES: dict[str, tuple[int, tuple[str, ...]]] = {
    "boot": (8, ("vm", "flavor", "host")),
    "boot_where_told": (6, ("vm", "flavor")),
    "schedule": (2, ("vm", "flavor")),
    "delete": (4, ("vm",)),
    "leave_for": (5, ("vm", "host", "flavor")),
    "confirm": (3, ("vm",)),
    "revert": (2, ("vm",)),
    "evacuate": (2, ("vm", "host")),
    "drop_part": (2, ("vm",)),
    "swap": (3, ("one", "other")),
    "commit": (5, ("uuid", "gib")),
    "host_is": (2, ("host", "state")),
    "note_list": (1, ()),
    "import_list": (1, ("age",)),
    "verify": (2, ("minutes",)),
    "repair": (1, ()),
    "compact": (1, ()),
    "fail_over": (1, ()),
    "end_flights": (1, ("all_of_them",)),
    "reconcile": (1, ()),
}


@pytest.fixture(autouse=True)
def _placement_is_the_source(settings: Any) -> None:
    placement_settings(settings, host_inventories="host", enforce_new_defaults=False)
    scheduler = settings.HEADROOM.scheduler.model_copy(update={"committed_resource_tracking": True})
    settings.HEADROOM = settings.HEADROOM.model_copy(
        update={"allocation_source": "placement", "scheduler": scheduler}
    )


def live(cloud: Cloud, random: Random) -> None:
    names = list(MOVES)
    for name in random.choices(names, [MOVES[one][0] for one in names], k=MOVES_EACH):
        chosen = {key: random.choice(CHOICES[key]) for key in MOVES[name][1]}
        with cloud.busy_is_fine():
            getattr(cloud, name)(**chosen)


def watch(is_over: Event) -> int:
    """Look again and again at one state of the database each."""
    looks = 0
    while not is_over.is_set():
        assert_sound()
        looks += 1
    return looks


@pytest.mark.parametrize("seed", range(int(os.environ.get("CLAIM_RACES", "2"))))
def test_claims_are_the_ledger_at_every_instant(seed: int, tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, is_alone=False)
    cloud.build(failover=bool(seed % 2))
    is_over = Event()
    with ThreadPoolExecutor(CLIENTS + 1) as pool:
        watching = pool.submit(on_own_connection, partial(watch, is_over))
        randoms = [Random(f"{seed} {number}") for number in range(CLIENTS)]  # noqa: S311 - no secret
        clients = [
            pool.submit(on_own_connection, partial(live, cloud, random)) for random in randoms
        ]
        try:
            for client in clients:
                client.result()
        finally:
            is_over.set()
    assert watching.result() > 0
    assert_sound()
