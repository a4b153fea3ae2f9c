"""How we log in to Keystone ourselves; light to load, unlike the libraries that do it."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import SecretStr


class KeystoneOptions(Protocol):
    """The settings ``HEADROOM_KEYSTONE__...``."""

    auth_url: str
    public_url: str
    username: str
    password: SecretStr | None
    user_domain_name: str
    project_name: str
    project_domain_name: str
    application_credential_id: str
    application_credential_secret: SecretStr | None
    region_name: str
    interface: Literal["public", "internal", "admin"]
    ca_file: str
    cert_file: str
    key_file: str
    timeout_seconds: float
    most_waiting: int
    connect_retries: int
    token_cache_seconds: int
    token_cache_entries: int
    service_token_roles: tuple[str, ...]
    service_type: str


def login_options(options: KeystoneOptions) -> tuple[str, dict[str, str]]:
    """Return the plugin of keystoneauth1 with which we log in ourselves, and its options."""
    if options.application_credential_id:
        secret = options.application_credential_secret
        return "v3applicationcredential", {
            "auth_url": options.auth_url,
            "application_credential_id": options.application_credential_id,
            "application_credential_secret": secret.get_secret_value() if secret else "",
        }
    return "v3password", {
        "auth_url": options.auth_url,
        "username": options.username,
        "password": options.password.get_secret_value() if options.password else "",
        "user_domain_name": options.user_domain_name,
        "project_name": options.project_name,
        "project_domain_name": options.project_domain_name,
    }
