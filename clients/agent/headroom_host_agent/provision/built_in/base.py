"""What the built-in provisioners share (spec hosts, D.11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headroom_host_agent.provision.data import Field
from headroom_host_agent.provision.provisioners import HostContext, ProvisionError
from headroom_host_agent.provision.units import Units
from headroom_host_agent.provision.wire import Reservation
from headroom_host_agent.resources.tree import SYSTEM


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


class BuiltIn:
    """What holds for all: no units, nothing to check, nothing to remove beside reservations."""

    order = 100
    persistent = False
    parallel = False
    data_schema: Mapping[str, Field] | None = None

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
