"""What the server tells this agent to do with the answers to its heartbeats (spec hosts, D.6)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from headroom_host_agent.server.client import RefusedError, ServerError
from headroom_host_agent.server.identity import IdentityError

log = logging.getLogger(__name__)


class Orders:
    """Carries commands out, each once in a run, and says so with the next heartbeat.

    One that the server does not answer to is tried again when it is told again.

    Args:
        works: Command -> what carries it out.
    """

    def __init__(self, works: Mapping[str, Callable[[], object]]) -> None:
        self._works = works
        self._done: dict[str, dict[str, object]] = {}
        self._sent: tuple[str, ...] = ()
        self._seen: set[str] = set()

    def done(self) -> list[dict[str, object]]:
        """Return what is to be said; it is forgotten with the next :meth:`take`."""
        self._sent = tuple(self._done)
        return list(self._done.values())

    def take(self, told: object) -> None:
        """Carry out what an answer lists, and was not carried out yet."""
        for identity in self._sent:
            self._done.pop(identity, None)
        self._sent = ()
        listed = {
            one["id"]: one["command"]
            for one in (told if isinstance(told, list) else [])
            if isinstance(one, dict) and isinstance(one.get("id"), str) and "command" in one
        }
        self._seen &= set(listed)
        for identity, command in listed.items():
            if identity not in self._seen:
                self._carry_out(identity, str(command))

    def _carry_out(self, identity: str, command: str) -> None:
        log.info("the server tells: %s", command)
        said: dict[str, object] = {"id": identity, "ok": True, "message": ""}
        try:
            self._work(command)()
        except ServerError as error:
            log.warning("%s is tried again: %s", command, error)
            return
        except (RefusedError, IdentityError, LookupError) as error:
            log.warning("%s: %s", command, error)
            said |= {"ok": False, "message": str(error)}
        self._seen.add(identity)
        self._done[identity] = said

    def _work(self, command: str) -> Callable[[], object]:
        work = self._works.get(command)
        if work is None:
            raise LookupError(f"this agent knows no {command[:64]!r}")
        return work
