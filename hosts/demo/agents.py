"""Agents of the demo: three hosts of its region, each with a small copy of /proc and /sys."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from headroom_host_agent.server.client import Address, Client
from headroom_host_agent.server.identity import (
    Identity,
    IdentityError,
    load_identity,
    new_identity,
    save_identity,
)

from hosts.agents.enrolment import create_token, revoke_key
from hosts.agents.models import HostKey, KeyState
from hosts.models import Host
from journal.actors import Actor

DATA: Final = "var/lib/headroom"
_ANN: Final = Actor(name="demo")
_ROUTES: Final = (
    "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    "eno1\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
)


def enrolled_hosts(places: Path, url: str, *, hosts: Iterable[Host]) -> list[Path]:
    """Return the roots of the hosts whose agents may run now; they are enrolled if they were not.

    Args:
        places: Where the roots are, one of each host.
        url: Of the served demo.

    Raises:
        RefusedError: The server takes no agent.
        ServerError: It does not answer.
    """
    client = Client(Address(url=url))
    return [_enrolled(host, places / host.name, client) for host in hosts]


def _enrolled(host: Host, root: Path, client: Client) -> Path:
    folder = root / DATA
    identity = None
    with suppress(IdentityError):
        identity = load_identity(folder)
    if identity is None or not _is_known(identity):
        shutil.rmtree(root, ignore_errors=True)
        folder.mkdir(parents=True)
        for key in HostKey.objects.filter(agent__host_name=host.name, state=KeyState.ACTIVE):
            revoke_key(pk=key.pk, actor=_ANN, request_id="")
        token = create_token(
            name_glob=host.name, uses=1, lifetime=timedelta(hours=1), actor=_ANN, request_id=""
        )
        save_identity(folder, client.enrol(new_identity(), token=token, name=host.name))
    for name, text in _files(host).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def _is_known(identity: Identity) -> bool:
    known = HostKey.objects.filter(kid=identity.kid, state=KeyState.ACTIVE)
    return known.filter(agent__uuid=identity.host_id).exists() if identity.is_enrolled else False


def _files(host: Host) -> Mapping[str, str]:
    """Return what the host says of itself, by path."""
    cores = max(1, host.total_vcpus)
    return {
        "sys/devices/system/cpu/online": f"0-{cores - 1}\n",
        "proc/cpuinfo": "".join(f"processor\t: {number}\n\n" for number in range(cores)),
        "proc/meminfo": f"MemTotal:       {max(1, host.total_memory_bytes >> 10)} kB\n",
        "proc/net/route": _ROUTES,
        "proc/sys/kernel/random/boot_id": f"00000000-0000-4000-8000-{host.pk:012d}\n",
        "sys/class/net/eno1/speed": "25000\n",
    }
