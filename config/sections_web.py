"""Settings of the web server, and of traces."""

from __future__ import annotations

from pydantic import Field

from journal.conf import Section


class WebSettings(Section):
    """How the web server takes bodies in, and when a worker counts as stuck."""

    stuck_seconds: float = Field(
        0.0,
        ge=0,
        le=86_400,
        description="A worker none of whose threads has finished or been idle for longer fails "
        "/livez; 0 is twice the longest deadline of a web request, and what is not above that "
        "deadline is refused.",
    )
    body_grace_seconds: float = Field(
        10.0, gt=0, le=3600, description="Time that every request body has, whatever its size."
    )
    body_min_kib_per_second: int = Field(
        32, ge=1, le=1 << 20, description="Rate at which a longer body must come after that."
    )
    most_json_values: int = Field(
        500_000,
        ge=1000,
        description="Most values in the JSON of a request body, about 100 bytes of memory each.",
    )
    bodies_mib: int = Field(
        128,
        ge=1,
        le=1 << 20,
        description="Memory of a process for bodies that come in or wait for a thread; beyond it "
        "the oldest that is not whole gets 503.",
    )
