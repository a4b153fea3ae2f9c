"""Room for images (spec hosts, A.7)."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from headroom_host_agent.resources.facts import ResourceError
from headroom_host_agent.resources.sizes import human_size

LEAST_FOR_PULL_BYTES = 5 * 1024**3
DEFAULT_FRACTION = Decimal("0.2")


class ImageStorageError(ResourceError):
    """No image may be pulled now."""

    code = "image_storage_exhausted"


def applied_fraction(fraction: Decimal | None) -> Decimal:
    """Return the share of the disk that images may take; unset, zero and negative mean 0.2."""
    return fraction if fraction is not None and fraction > 0 else DEFAULT_FRACTION


def max_image_bytes(disk_capacity: int, fraction: Decimal | None) -> int:
    """Return what images may take: of what the disk has, not of what may be given away."""
    return int(disk_capacity * Fraction(applied_fraction(fraction)))


def check_disk_for_pull(available_bytes: int) -> None:
    """Check the room that a pull needs at least.

    Raises:
        ImageStorageError: Less than 5 GiB is available.
    """
    if available_bytes < LEAST_FOR_PULL_BYTES:
        raise ImageStorageError(
            f"disk: available {human_size(available_bytes)}, "
            f"an image pull needs {human_size(LEAST_FOR_PULL_BYTES)}"
        )


def check_image_storage(
    current_bytes: int, *, disk_capacity: int, fraction: Decimal | None
) -> None:
    """Check the share of images; a host without a known disk has no limit.

    Raises:
        ImageStorageError: Images and layers take what they may or more.
    """
    limit = max_image_bytes(disk_capacity, fraction)
    if 0 < limit <= current_bytes:
        percent = applied_fraction(fraction) * 100
        raise ImageStorageError(
            f"images take {human_size(current_bytes)}, the limit is {human_size(limit)} "
            f"({percent.normalize():f}% of the disk)"
        )
