"""The section of the deployment settings for a Placement elsewhere (spec placement, 8)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from journal.conf import Section
from placement.domain.access_rules import Rule, parse_rules
from placement.gateway.modes import STATEFUL, Group, Mode, parse_modes
from placement.gateway.upstream import PORTS


class GatewaySettings(Section):
    """A Placement elsewhere that requests are handed on to (docs/gateway.md)."""

    upstream_url: str = Field(
        "",
        description="Root of another Placement, such as `http://placement:8778/placement`; empty "
        "is none, and everything is answered here.",
    )
    modes: dict[str, str] = Field(
        {},
        description='Who answers, by group of endpoints (JSON, such as `{"root": "local"}`): '
        "`passthrough` is the other Placement, `local` or `crd` are ours, `hybrid` is ours for our "
        "providers and the other Placement for all others. What is not named is "
        "`passthrough` with an UPSTREAM_URL, else `local`.",
    )
    timeout_seconds: float = Field(
        60.0,
        gt=0,
        le=600,
        description="Longest time for a request to the other Placement, all of it included.",
    )
    connect_seconds: float = Field(
        10.0, gt=0, le=600, description="Longest time to connect to it, TLS included."
    )
    idle_seconds: float = Field(
        4.0,
        gt=0,
        le=3600,
        description="How long an idle connection to it is used again: less than it keeps idle "
        "connections, since a write over one that ends just then fails.",
    )
    most_idle: int = Field(
        100, ge=1, le=10_000, description="Idle connections to it that a process keeps."
    )
    most_failures: int = Field(
        5, ge=1, le=10_000, description="Failures in a row after which it is left alone."
    )
    open_seconds: float = Field(
        5.0, gt=0, le=3600, description="How long it is left alone then, but for one try."
    )
    most_answer_mib: int = Field(
        256, ge=1, le=4096, description="Largest answer of it that is taken; more is 502."
    )
    ca_file: Path | None = Field(
        None, description="Certificates that it is trusted by; without it those of the system."
    )
    cert_file: Path | None = Field(None, description="Certificate that we show to it.")
    key_file: Path | None = Field(None, description="Key of that certificate.")
    cloud: str = Field(
        "",
        description="Name in clouds.yaml of the cloud by whose account commands and workers ask "
        "the other Placement themselves: to copy from it, and to mirror to it.",
    )
    token: SecretStr | None = Field(
        None, description="A token for the same, instead of an account; for one without Keystone."
    )

    nova_config: Path | None = Field(
        None,
        description="A nova.conf that `doctor` may read: whether its `[placement]` waits long "
        "enough for us, and tries again.",
    )
    candidates_degrade: bool = Field(
        default=False,
        description="Whether candidates in mode `hybrid` are ours alone while the other Placement "
        "does not answer; else the answer is 502.",
    )

    access: list[dict[str, Any]] = Field(
        [],
        description="Who may send what before anybody answers (JSON): an ordered list of "
        "`pattern` (`METHOD /path`, where `*` is any method and `/*` at the end everything below) "
        "and `roles`, as docs/gateway.md shows; empty is no such list.",
    )
    allow_mode_override: bool = Field(
        default=False,
        description="Whether callers with role `admin` or `service` may choose the mode of a "
        "request by its header `X-Cortex-Feature-Mode`.",
    )
    checks_url: str = Field(
        "",
        description="Address of a served Placement API, such as "
        "`http://headroom:8080/placement`, that a task writes to and reads from every five "
        "minutes, by the account of CLOUD or TOKEN (docs/gateway.md); empty is none.",
    )
    checks_modes: list[Mode] = Field(
        [],
        description='Modes that this asks for (JSON, such as `["passthrough", "local"]`), which '
        "needs ALLOW_MODE_OVERRIDE; empty is as it is configured.",
    )
    shadow_percent: float = Field(
        0.0,
        ge=0,
        le=100,
        description="Share of the candidate searches in mode `passthrough` that are answered from "
        "copies as well, in the background, and compared.",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.upstream_url:
            _check_url(self.upstream_url)
        elif self.access:
            raise ValueError("ACCESS needs an UPSTREAM_URL: it is of the gateway")
        if self.checks_url and not (self.cloud or self.token):
            raise ValueError("CHECKS_URL needs CLOUD or TOKEN: by which account")
        self.rules()
        self.mode_of_group()
        return self

    def mode_of_group(self) -> Mapping[Group, Mode]:
        """Return who answers, for each group."""
        return parse_modes(self.modes, has_upstream=bool(self.upstream_url))

    def rules(self) -> tuple[Rule, ...]:
        """Return the access rules.

        Raises:
            ValueError: one cannot be understood.
        """
        return parse_rules(self.access)

    @property
    def keeps_allocations(self) -> bool:
        """Whether allocations are ours."""
        return self.mode_of_group()[STATEFUL[0]] is Mode.LOCAL


def _check_url(url: str) -> None:
    """Refuse what is no root of a service.

    Raises:
        ValueError: it is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError("UPSTREAM_URL is no address of http or https")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("UPSTREAM_URL has more than scheme, host, port and path")
    if parts.port is not None and not parts.port:
        raise ValueError("UPSTREAM_URL has no usable port")
