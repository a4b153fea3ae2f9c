"""An account of the gateway, and a Keystone that can be away."""

from __future__ import annotations

from keystoneauth1.exceptions import ConnectFailure
from openstack.exceptions import ConfigException


class Keystone:
    """A session, and what opens it.

    Attributes:
        is_away: Whether it gives no token.
        timeouts: Of the sessions that were opened.
        invalidated: How often a token was given up.
    """

    def __init__(self) -> None:
        self.is_away = False
        self.timeouts: list[float] = []
        self.invalidated = 0
        self.session = self

    def connect(self, cloud: str, api_timeout: float | None = None) -> Keystone:
        if cloud != "known":
            raise ConfigException(f"Cloud {cloud} was not found.")
        self.timeouts.append(api_timeout or 0.0)
        return self

    def invalidate(self) -> None:
        self.invalidated += 1

    def get_token(self) -> str:
        if self.is_away:
            raise ConnectFailure("Unable to establish connection")
        return "admin"
