"""What the built-in provisioners share (spec hosts, D.11)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headroom_host_agent.provision.provisioners import HostContext, ProvisionError
from headroom_host_agent.provision.units import Units
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.resources.tree import SYSTEM

Check = Callable[[object], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where built-in provisioners work, and whether they may write there.

    Attributes:
        enforce: False has them say what they would do.
    """

    sysroot: Path = SYSTEM
    data_dir: Path = Path("/var/lib/headroom")
    enforce: bool = False
    cap_slices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a reservation's data."""

    check: Check
    allowed: str
    is_needed: bool = False


class BuiltIn:
    """What holds for all: no units, nothing to check, nothing to remove beside reservations."""

    order = 100
    persistent = False
    parallel = False

    def __init__(self, place: Place) -> None:
        self.place = place

    def units(self, reservation: Reservation) -> Units:
        """Return none."""
        return Units()

    def plan(self, changes: Mapping[Path, str]) -> dict[str, object]:
        """Return the data of a result that says what is written, or what would be."""
        would = {str(Path("/") / path.relative_to(self.place.sysroot)): text
                 for path, text in sorted(changes.items())}  # fmt: skip
        return {"enforced": self.place.enforce, "files": would}


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


def read_number(path: Path) -> int:
    """Return the number that a file of the kernel holds.

    Raises:
        ProvisionError: It holds none.
    """
    try:
        return int(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise ProvisionError("unreadable", f"{path} cannot be read: {error}") from None


def write(path: Path, text: str) -> None:
    """Write to a file of the kernel; nothing when it says that already.

    Raises:
        ProvisionError: The kernel refuses.
    """
    try:
        if path.exists() and path.read_text(encoding="utf-8").strip() == text:
            return
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProvisionError("refused", f"{path} cannot be written: {error.strerror}") from None


def others_of(context: HostContext, kind: str) -> tuple[Reservation, ...]:
    """Return the other reservations of a type that are on the host."""
    return tuple(one for one in context.others if one.type == kind)
