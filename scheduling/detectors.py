"""The detector of VMs that wait for a CPU (spec scheduling, 17.2)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StealFigure:
    """How much CPU time others took from a VM.

    Attributes:
        host: Host it runs on.
        maximum_percent: Largest steal percentage over the observed time.
    """

    vm_uuid: str
    host: str
    maximum_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """A VM that should leave its host.

    Attributes:
        host: Host it runs on.
        reason: Why, for people.
    """

    vm_uuid: str
    host: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidHighSteal:
    """Reports VMs above a steal percentage.

    Attributes:
        threshold_percent: Largest percentage that is fine, 0 or more; 0 reports nothing.
    """

    threshold_percent: float

    def __post_init__(self) -> None:
        if not self.threshold_percent >= 0:
            raise ValueError("maxStealPctOverObservedTimeSpan must not be negative")

    def detect(self, figures: Iterable[StealFigure]) -> tuple[Detection, ...]:
        """Return the VMs above the threshold, in the given order."""
        if not self.threshold_percent:
            return ()
        return tuple(
            Detection(
                vm_uuid=figure.vm_uuid,
                host=figure.host,
                reason=(
                    f"steal percentage {figure.maximum_percent:.2f} %"
                    f" above {self.threshold_percent:.2f} %"
                ),
            )
            for figure in figures
            if figure.maximum_percent > self.threshold_percent
        )
