"""Operating system of a VM as told by its image (spec liquid, 9.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

UNKNOWN: Final = "unknown"
IMAGE_DELETED: Final = "image-deleted"
TAG_PREFIX: Final = "ostype:"
_GUEST_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def os_type_of_image(properties: Mapping[str, object]) -> str:
    """Return the operating system type of an image.

    The property ``vmware_ostype`` wins, then ``os_distro``, then the first tag ``ostype:<X>``; a
    text that cannot be a guest id does not count.

    Args:
        properties: The image's properties; ``tags`` is a list of texts.
    """
    tags = properties.get("tags")
    tagged = [
        str(tag).removeprefix(TAG_PREFIX)
        for tag in (tags if isinstance(tags, list | tuple) else ())
        if str(tag).startswith(TAG_PREFIX)
    ]
    candidates = (properties.get("vmware_ostype"), properties.get("os_distro"), *tagged)
    return next(
        (
            candidate
            for candidate in candidates
            if isinstance(candidate, str) and _GUEST_ID.fullmatch(candidate)
        ),
        UNKNOWN,
    )
