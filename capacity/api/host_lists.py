"""The host list of a call, in columns where it is written as Nova writes it (spec scheduling, 2.3).

Nova calls for one VM after another with the hosts of a region, which are most of a body, in another
order each time. Names and weights of a regular text are read from where they stand; what is written
in another way is read by a typed decoder, at three times the cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec
import numpy as np

from scheduling.columns import FloatColumn, Int64Column
from scheduling.host_names import MOST_NAME_BYTES, HostNames, HostWeights, WordsOfText


class _ListedHost(msgspec.Struct, gc=False):
    """An entry of the host list; its hypervisor's name is not looked at."""

    host: str


_HOSTS = msgspec.json.Decoder(list[_ListedHost])
_WEIGHTS = msgspec.json.Decoder(dict[str, float])
_NAME = attrgetter("host")
_QUOTE, _FIRST_PRINTED = ord('"'), ord(" ")


@dataclass(frozen=True, slots=True)
class _Spelling:
    """What stands between the names of a regular text.

    Attributes:
        between_fields: From the end of a host's name to the start of its hypervisor's.
        between_hosts: From the end of that to the start of the next host's name.
        before: What the list begins with.
        between_weights: From the end of a name to the start of the next where the weight is zero.
        last_weight: What follows the last name where its weight is zero.
    """

    between_fields: bytes
    between_hosts: bytes
    before: bytes
    between_weights: bytes
    last_weight: bytes


_SPELLINGS = (
    _Spelling(
        b'", "hypervisor_hostname": "', b'"}, {"host": "', b'[{"host": "', b'": 0.0, "', b'": 0.0}'
    ),
    _Spelling(b'","hypervisor_hostname":"', b'"},{"host":"', b'[{"host":"', b'":0.0,"', b'":0.0}'),
)


def read_host_list(
    hosts_text: bytes, weights_text: bytes
) -> tuple[Sequence[str], Mapping[str, float]]:
    """Return the names and weights that two texts say.

    Those in columns have a weight for each host and no other; the rest is to be checked.

    Raises:
        msgspec.MsgspecError: they do not have the types that Nova sends.
    """
    for spelling in _SPELLINGS:
        names = _names_in_columns(hosts_text, spelling)
        column = None if names is None else _weights_in_columns(weights_text, names, spelling)
        if names is not None and column is not None:
            return names, HostWeights(names, column)
    return tuple(map(_NAME, _HOSTS.decode(hosts_text))), _WEIGHTS.decode(weights_text)


def _names_in_columns(text: bytes, spelling: _Spelling) -> HostNames | None:
    """Return the names of a list that is a regular text, each byte of it looked at."""
    if not (text.startswith(spelling.before) and text.endswith(b'"}]')):
        return None
    quotes = _quotes(text, each=8)
    if quotes is None:
        return None
    words = WordsOfText(text)
    begins, ends = quotes[:, 2] + 1, quotes[:, 3]
    is_regular = words.says(ends, spelling.between_fields) and words.says(
        quotes[:-1, 7], spelling.between_hosts
    )
    return HostNames(words, begins, ends) if is_regular and _are_short(begins, ends) else None


def _weights_in_columns(text: bytes, names: HostNames, spelling: _Spelling) -> FloatColumn | None:
    """Return float64[N], the weights that a text has for just these hosts in this order."""
    quotes = _quotes(text, each=2)
    if quotes is None or len(quotes) != len(names) or not text.startswith(b'{"'):
        return None
    words = WordsOfText(text)
    begins, ends = quotes[:, 0] + 1, quotes[:, 1]
    if not _are_short(begins, ends) or HostNames(words, begins, ends) != names:
        return None
    if text.endswith(spelling.last_weight) and words.says(ends[:-1], spelling.between_weights):
        return np.zeros(len(names), dtype=np.float64)
    weights = _WEIGHTS.decode(text)
    if len(weights) != len(names):
        return None
    return np.fromiter(weights.values(), dtype=np.float64, count=len(weights))


def _quotes(text: bytes, *, each: int) -> Int64Column | None:
    """Return int64[N, each], the places of quotes, if the texts between need no decoding."""
    letters = np.frombuffer(text, dtype=np.uint8)
    if b"\\" in text or not text.isascii() or int(letters.min()) < _FIRST_PRINTED:
        return None
    quotes = np.flatnonzero(letters == _QUOTE)
    return quotes.reshape(-1, each) if len(quotes) and not len(quotes) % each else None


def _are_short(begins: Int64Column, ends: Int64Column) -> bool:
    return int((ends - begins).max()) <= MOST_NAME_BYTES
