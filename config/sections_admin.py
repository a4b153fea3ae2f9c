"""Settings of the admin's doors: sessions, refused logins, an OpenID Connect provider."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

from journal.conf import Section


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
        "right are believed. 0 takes the address of the connection.",
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
            message = f"needs {', '.join(missing)}"
            raise ValueError(message)
        return self
