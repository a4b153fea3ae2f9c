"""Refusals of agents (spec hosts, D.4, D.5)."""

from __future__ import annotations

from journal.errors import HeadroomError, InvalidInput


class AgentRefused(HeadroomError):  # noqa: N818 - names the caller's mistake
    """A request of an agent is refused; the code says which rule."""

    code = "agent_refused"
    status = 400


class AgentUnknown(AgentRefused):
    """Nobody knows who sent it."""

    code = "unknown_key"
    status = 401


class AgentForbidden(AgentRefused):
    """It is known who sent it, and it is not the sender's to do."""

    code = "wrong_host"
    status = 403


class UnknownToAgent(AgentRefused):
    """The sender has nothing of this name."""

    code = "no_such_key"
    status = 404


class NoAgent(InvalidInput):
    """An operator names a host without an agent."""

    code = "unknown_agent"
    status = 404

    def __init__(self, host_name: str) -> None:
        super().__init__(f"no agent of a host {host_name!r} enrolled", field="host")


class AgentConflict(AgentRefused):
    """It contradicts what is stored."""

    code = "host_exists"
    status = 409


class AgentGone(AgentRefused):
    """There will be nothing more for the sender."""

    code = "decommissioned"
    status = 410
