"""The sections of the deployment settings about the web server and who signs in to it."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

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
        description="Room of a process for bodies that come in or wait for a thread: memory, or "
        "files for those above 1 MiB that are handed on; beyond it the oldest that is not whole "
        "gets 503.",
    )


class ReplicaSettings(Section):
    """Reading from standbys of the database (docs/deployment.md)."""

    most_lag_seconds: float = Field(
        5.0, gt=0, le=3600, description="How old what a standby tells may be."
    )
    look_seconds: float = Field(
        1.0, gt=0, le=60, description="Pause between looks at where the standbys are."
    )
    searches: bool = Field(
        default=False,
        description="Whether each search for candidates reads from a standby what changed; all "
        "providers are read there in any case.",
    )
    replay_wait_milliseconds: int = Field(
        30,
        ge=0,
        lt=1000,
        description="How long a search waits until the standby has what was committed before it; "
        "then the primary is asked.",
    )

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.look_seconds * 2 > self.most_lag_seconds:
            raise ValueError("look_seconds must be at most half of most_lag_seconds")
        return self


class DeadlineSettings(Section):
    """How long the database works and waits for us.

    Those of web processes are defaults of the database user (``configure_database``), so that they
    cost a request nothing; workers and commands set theirs at the start of each transaction.
    """

    web_statement_seconds: float = Field(
        30.0, gt=0, le=3600, description="Longest statement of a request."
    )
    web_lock_seconds: float = Field(
        10.0,
        gt=0,
        le=3600,
        description="Longest wait for a lock that no shorter HEADROOM_LOCK_TIMEOUT_SECONDS ends.",
    )
    web_idle_transaction_seconds: float = Field(
        60.0, gt=0, le=3600, description="How long a request may compute in an open transaction."
    )
    worker_statement_seconds: float = Field(
        300.0, gt=0, le=3600, description="Longest statement of a task."
    )
    worker_lock_seconds: float = Field(
        30.0, gt=0, le=3600, description="Longest wait of a task for a lock, as above."
    )
    worker_idle_transaction_seconds: float = Field(
        900.0, gt=0, le=3600, description="How long a task may compute in an open transaction."
    )
    migration_lock_seconds: float = Field(
        1.0,
        gt=0,
        le=60,
        description="Longest wait of a migration for a lock, since others wait behind it; below "
        "HEADROOM_LOCK_TIMEOUT_SECONDS none of them fails.",
    )
    migration_patience_seconds: float = Field(
        600.0,
        ge=0,
        le=86400,
        description="How long `migrate` tries again while a lock that it needs is not free.",
    )
    client_check_seconds: float = Field(
        5.0,
        ge=0,
        le=3600,
        description="How soon the database ends a statement whose client is gone; 0 is at its end.",
    )
    keepalive_idle_seconds: int = Field(
        30, ge=1, le=7200, description="Silence after which a connection is probed, on both sides."
    )
    keepalive_interval_seconds: int = Field(
        10, ge=1, le=3600, description="Time between two probes."
    )
    keepalive_count: int = Field(
        3, ge=1, le=100, description="Unanswered probes after which a connection is given up."
    )


class HeavySettings(Section):
    """Questions that take long: what-if, simulations, drain checks, previews, explanations."""

    most_at_once: int = Field(
        0,
        ge=0,
        le=100,
        description="Most of them on one machine, explanations counted apart; others get 503 with "
        "Retry-After. 0 is half as many as there are cores, at least 1.",
    )
    deadline_seconds: float = Field(
        20.0, gt=0, le=600, description="Longest computation of one; then it is ended with 503."
    )


class AdminSettings(Section):
    """Sessions and logins of the admin."""

    session_seconds: int = Field(
        43_200, ge=60, le=1_209_600, description="How long a login is good for."
    )
    login_failures: int = Field(
        10, ge=1, le=1000, description="Failed logins after which an address is locked out."
    )
    lockout_seconds: int = Field(
        900, ge=1, le=604_800, description="How long, from its last attempt on."
    )
    proxy_count: int = Field(
        0,
        ge=0,
        le=10,
        description="Proxies before us that add to X-Forwarded-For: so many entries from its "
        "right are believed, and their X-Forwarded-Proto. 0 takes the address and the scheme of "
        "the connection.",
    )


class OidcSettings(Section):
    """Login to the admin at an OpenID Connect provider; off without `CLIENT_ID`."""

    client_id: str = Field("", description="Our id at the provider.")
    client_secret: SecretStr | None = Field(None, description="Our secret there.")
    issuer: str = Field("", description="What the provider's tokens name as `iss`.")
    authorization_url: str = Field("", description="Where browsers are sent to log in.")
    token_url: str = Field("", description="Where we exchange codes for tokens.")
    userinfo_url: str = Field("", description="Where we ask who it is.")
    jwks_url: str = Field("", description="Where the provider's keys are.")
    sign_algorithm: str = Field(
        "RS256", pattern=r"^(RS|ES)(256|384|512)$", description="How it signs its tokens."
    )
    verify_key_id: bool = Field(
        default=True, description="Off for a provider with one key whose tokens do not name it."
    )
    scopes: str = Field("openid profile email", description="Scopes asked for.")
    username_claim: str = Field(
        "preferred_username",
        description="Claim that names the user here; users must not be able to choose it freely.",
    )
    groups_claim: str = Field("groups", description="Claim with the list of the user's groups.")
    viewer_groups: tuple[str, ...] = Field((), description="Groups that may look (JSON list).")
    operator_groups: tuple[str, ...] = Field(
        (), description="Groups that may also change (JSON list)."
    )
    administrator_groups: tuple[str, ...] = Field(
        (), description="Groups that may also manage users (JSON list)."
    )
    timeout_seconds: float = Field(
        5.0, gt=0, le=60, description="Longest wait for an answer of the provider."
    )

    @property
    def is_on(self) -> bool:
        """Whether users may log in there."""
        return bool(self.client_id)

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        needed = (
            "client_secret", "issuer", "authorization_url", "token_url", "userinfo_url", "jwks_url"
        )  # fmt: skip
        missing = [name for name in needed if not getattr(self, name)]
        if self.is_on and missing:
            raise ValueError(f"needs {', '.join(missing)}")
        return self
