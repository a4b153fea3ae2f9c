"""The section of the deployment settings for the listener to Nova's notifications."""

from __future__ import annotations

from pydantic import Field, SecretStr

from journal.conf import Section


class ListenerSettings(Section):
    """Hearing Nova's notifications (docs/notifications.md)."""

    transport_url: SecretStr | None = Field(
        None,
        description="Nova's message queue as oslo.messaging names it, "
        "`rabbit://user:password@host:5672/`; options of its driver may follow, such as "
        "`?ssl=true&amqp_durable_queues=true`. Without it `./run serve listener` does not start.",
    )
    exchange: str = Field("nova", min_length=1, description="Nova's `control_exchange`.")
    topics: tuple[str, ...] = Field(
        ("versioned_notifications",),
        min_length=1,
        description="Nova's `versioned_notifications_topics` (JSON list).",
    )
    pool: str = Field(
        "headroom_hints",
        min_length=1,
        description="Name of our own queue, so that nobody else lacks what we take; all listeners "
        "of a region share it.",
    )
    metrics_port: int = Field(
        9466, ge=0, le=65535, description="Port of the listener's metrics; 0 is none."
    )
