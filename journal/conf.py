"""Sections of the deployment settings: what all have, and those that this floor reads."""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from journal.actors import Actor
from journal.durations import parse_seconds

LEAST_TOKEN_CHARACTERS = 16


class Section(BaseModel, extra="forbid"):
    """A group of settings; those in seconds may be written as durations (``5m``, ``500ms``)."""

    @field_validator("*", mode="before")
    @classmethod
    def _durations(cls, raw: Any, info: ValidationInfo) -> Any:  # Any: what the environment holds
        return with_duration(raw, info)


def with_duration(raw: Any, info: ValidationInfo) -> Any:  # Any: what the environment holds
    """Return a setting with a duration turned into seconds, if it is one in seconds.

    Raises:
        ValueError: it is neither a number nor a duration.
    """
    is_in_seconds = (info.field_name or "").endswith("_seconds")
    return parse_seconds(raw) if is_in_seconds and isinstance(raw, str) else raw


class AccessToken(BaseModel, extra="forbid", frozen=True):
    """A static bearer token of ``HEADROOM_AUTH=token``: who it is and what it may do.

    Attributes:
        token: The token itself; or instead of it
        token_sha256: its hash, in hexadecimal. Enough for random tokens, not for chosen words.
    """

    token: SecretStr | None = Field(None, min_length=LEAST_TOKEN_CHARACTERS)
    token_sha256: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    name: str = Field(min_length=1)
    roles: tuple[str, ...] = ()
    project_id: str = ""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if (self.token is None) == (not self.token_sha256):
            raise ValueError("needs either token or token_sha256")
        return self

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the token."""
        if self.token is None:
            return bytes.fromhex(self.token_sha256)
        return sha256(self.token.get_secret_value().encode()).digest()

    @cached_property
    def actor(self) -> Actor:
        """Who it is."""
        return Actor(name=self.name, roles=frozenset(self.roles), project_id=self.project_id)


class KeystoneSettings(Section):
    """Our login at Keystone, and how tokens of callers are checked (spec liquid, 3, 15.1)."""

    auth_url: str = Field("", description="Keystone's address, such as `https://keystone:5000/v3`.")
    public_url: str = Field(
        "", description="Address that refused callers are told; empty is the same."
    )
    username: str = Field("", description="Our user: may validate tokens and list projects.")
    password: SecretStr | None = Field(None, description="Its password.")
    user_domain_name: str = Field("Default", description="Domain of the user.")
    project_name: str = Field("", description="Project that we log in to, such as `service`.")
    project_domain_name: str = Field("Default", description="Domain of the project.")
    application_credential_id: str = Field(
        "", description="Log in with this application credential instead of a password."
    )
    application_credential_secret: SecretStr | None = Field(None, description="Its secret.")
    region_name: str = Field("", description="Region whose endpoints are used; empty is any.")
    interface: Literal["public", "internal", "admin"] = Field(
        "public", description="Kind of Keystone's endpoint that tokens are checked at."
    )
    ca_file: str = Field("", description="Certificates to trust; empty is the system's.")
    cert_file: str = Field("", description="Our client certificate, if Keystone wants one.")
    key_file: str = Field("", description="Its key.")
    timeout_seconds: float = Field(
        5.0, gt=0, le=300, description="Longest time a request waits until its token is checked."
    )
    most_waiting: int = Field(
        4,
        ge=1,
        le=1000,
        description="Most requests of one web process that wait for Keystone at once; others get "
        "503. Must be below GRANIAN_BLOCKING_THREADS (8).",
    )
    connect_retries: int = Field(1, ge=0, le=10, description="Times a failed connect is repeated.")
    token_cache_seconds: int = Field(
        300, ge=0, le=3600, description="How long a validated token is remembered; 0 is never."
    )
    token_cache_entries: int = Field(
        10_000, ge=1, le=1_000_000, description="Most tokens remembered by one process."
    )
    service_token_roles: tuple[str, ...] = Field(
        ("service",), description="Roles of which a service token needs one (JSON list)."
    )
    service_type: str = Field(
        "",
        description="Our type in the catalog, for application credentials with access rules; "
        "without it they are refused.",
    )

    @property
    def is_complete(self) -> bool:
        """Whether we can log in."""
        has_password = bool(self.username and self.password and self.project_name)
        has_credential = bool(self.application_credential_id and self.application_credential_secret)
        return bool(self.auth_url) and (has_password or has_credential)


class TracingSettings(Section):
    """Traces of requests, statements and tasks; needs the packages of requirements-tracing.lock."""

    endpoint: str = Field(
        "",
        pattern=r"^(https?://.+)?$",
        description="Where spans go, OTLP over HTTP: `http://collector:4318/v1/traces`. Empty "
        "means no traces.",
    )
    sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of traces that is kept; a caller who sends a trace decides for it.",
    )
    service_name: str = Field(
        "headroom", min_length=1, description="Name of the service, before `-web` or `-worker`."
    )
