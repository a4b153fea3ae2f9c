"""The data of reservations: the fields of a type, and what is allowed in each (spec hosts, D.11).

A provisioner says its fields as ``data_schema``; what does not keep to them is never made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headroom_host_agent.provision.provisioners import ProvisionError
from headroom_host_agent.provision.wire import Reservation

Check = Callable[[object], bool]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a reservation's data."""

    check: Check
    allowed: str
    is_needed: bool = False


def fields_of(reservation: Reservation, schema: Mapping[str, Field]) -> dict[str, object]:
    """Return the data of a reservation.

    Raises:
        ProvisionError: A field is unknown, missing or not allowed.
    """
    try:
        data = json.loads(reservation.data or b"null")
    except ValueError:
        data = ""
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise ProvisionError("bad_data", "the data must be an object")
    unknown = sorted(set(data) - set(schema))
    if unknown:
        raise ProvisionError("bad_data", f"unknown fields: {', '.join(unknown)}")
    for name, field in schema.items():
        if name not in data:
            if field.is_needed:
                raise ProvisionError("bad_data", f"{name}: must be {field.allowed}")
        elif not field.check(data[name]):
            raise ProvisionError("bad_data", f"{name}: must be {field.allowed}")
    return data


def lenient_fields(reservation: Reservation) -> dict[str, object]:
    """Return the data of a reservation that was checked before; empty when they are none."""
    try:
        data = json.loads(reservation.data or b"null")
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def number(least: int, most: int = 2**63 - 1) -> Check:
    """Return a check of a whole number."""

    def check(value: object) -> bool:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return is_number and least <= int(str(value)) <= most

    return check


def one_of(*texts: str) -> Check:
    """Return a check of a text."""
    return lambda value: value in texts


def is_flag(value: object) -> bool:
    """Return whether a value is true or false."""
    return isinstance(value, bool)


def is_name(value: object) -> bool:
    """Return whether a value is a printable text."""
    return isinstance(value, str) and re.fullmatch(r"[^\x00-\x1f\x7f/]{1,128}", value) is not None


def amount(data: Mapping[str, object], name: str, otherwise: int = 0) -> int:
    """Return a number of data that were checked."""
    value = data.get(name, otherwise)
    return value if isinstance(value, int) else otherwise
