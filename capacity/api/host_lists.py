"""The host list of a call, decoded once for all calls that bring it (spec scheduling, 2.3).

Nova calls for one VM after another with the hosts of a region, which are most of a body: texts that
came before letter by letter need no decoding, no comparison of hosts with weights, and no new
look-up of names. Where the order or the weights differ, the typed decoder reads them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

import msgspec

#: Of the texts that a process keeps; two lists of 50,000 hosts, or ten of 10,000.
MOST_KEPT_BYTES = 8 << 20


class _ListedHost(msgspec.Struct, gc=False):
    """An entry of the host list; its hypervisor's name is not looked at."""

    host: str


_HOSTS = msgspec.json.Decoder(list[_ListedHost])
_WEIGHTS = msgspec.json.Decoder(dict[str, float])
_NAME = attrgetter("host")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostList:
    """Hosts and weights of a body.

    Attributes:
        hosts_text: JSON of the hosts.
        weights_text: JSON of the weights.
        names: Host names as they stand in it.
        weights: Weight by name; calls share it, nobody changes it.
        is_kept: Whether an earlier call brought the same, found to be without fault.
    """

    hosts_text: bytes
    weights_text: bytes
    names: tuple[str, ...]
    weights: Mapping[str, float]
    is_kept: bool = False


_kept: tuple[HostList, ...] = ()
_keeping = threading.Lock()


def read_host_list(hosts_text: bytes, weights_text: bytes) -> HostList:
    """Return the hosts and weights that two texts say, an earlier call's if they are the same.

    Raises:
        msgspec.MsgspecError: they do not have the types that Nova sends.
    """
    names: tuple[str, ...] | None = None
    for known in _kept:
        if known.hosts_text == hosts_text:
            if known.weights_text == weights_text:
                return known
            names = known.names
    if names is None:
        names = tuple(map(_NAME, _HOSTS.decode(hosts_text)))
    return HostList(
        hosts_text=hosts_text,
        weights_text=weights_text,
        names=names,
        weights=_WEIGHTS.decode(weights_text),
    )


def keep_host_list(listed: HostList) -> None:
    """Keep a list that has a weight for each host and no other, instead of the oldest ones."""
    global _kept  # noqa: PLW0603 - replaced whole
    kept = HostList(
        hosts_text=listed.hosts_text,
        weights_text=listed.weights_text,
        names=listed.names,
        weights=listed.weights,
        is_kept=True,
    )
    with _keeping:
        chosen, left = [], MOST_KEPT_BYTES
        for one in (kept, *(known for known in _kept if not _is_same(known, kept))):
            left -= len(one.hosts_text) + len(one.weights_text)
            if left < 0:
                break
            chosen.append(one)
        _kept = tuple(chosen)


def _is_same(one: HostList, other: HostList) -> bool:
    return one.hosts_text == other.hosts_text and one.weights_text == other.weights_text
