"""The call itself: options, the session, deadlines, and a pause while nobody answers."""

from __future__ import annotations

import time
from typing import Any

from keystoneauth1 import exceptions, loading
from oslo_config import cfg

from headroom_nova.wire import AnswerError, ranks_of

GROUP = "headroom"
OK = 200
OPEN, CLOSED = "open", "closed"
OPTIONS = (
    cfg.URIOpt(
        "url",
        schemes=["http", "https"],
        help="Address of Headroom's external scheduler, such as "
        "https://headroom.example.com/scheduler/nova/external. Nobody is asked without it.",
    ),
    cfg.StrOpt(
        "on_failure",
        default=OPEN,
        choices=[
            (OPEN, "Nova chooses among all hosts by its own weights"),
            (CLOSED, "the request finds no valid host"),
        ],
        help="What happens to a request when Headroom does not answer.",
    ),
    cfg.FloatOpt(
        "pause_seconds",
        default=10.0,
        min=0.0,
        help="How long nobody is asked after a failure where on_failure is open, so that one "
        "deadline passes and not one for every request.",
    ),
    cfg.BoolOpt(
        "tell_intent",
        default=True,
        help="Look the server up in its cell and tell what the request is for.",
    ),
    cfg.FloatOpt(
        "weight_multiplier",
        default=1_000_000.0,
        help="Weight of Headroom's order beside Nova's other weighers.",
    ),
)
DEFAULT_TIMEOUT_SECONDS = 10


class UnansweredError(Exception):
    """Headroom did not answer in time, or with something else than hosts."""


class Client:
    """Asks Headroom; one for a process.

    Args:
        conf: Nova's configuration. ``[headroom]`` takes the options of keystoneauth's sessions
            (``timeout``, ``cafile``, ...) and logins; ``auth_section = placement`` uses another
            section's login.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        conf.register_opts(OPTIONS, group=GROUP)
        loading.register_session_conf_options(conf, GROUP)
        conf.set_default("timeout", DEFAULT_TIMEOUT_SECONDS, group=GROUP)
        loading.register_auth_conf_options(conf, GROUP)
        self._conf = conf
        self._session: Any = None  # Any: the library has no types
        self._paused_until = 0.0

    @property
    def options(self) -> Any:  # Any: what oslo.config makes of the options
        """Return the section ``[headroom]``."""
        return self._conf[GROUP]

    def is_paused(self) -> bool:
        """Return whether a failure was a moment ago, and requests go on without Headroom."""
        return bool(self.options.on_failure == OPEN and time.monotonic() < self._paused_until)

    def ask(self, body: Any) -> dict[str, int]:  # Any: JSON
        """Return the place of each host that Headroom would take, 0 for the best.

        Raises:
            UnansweredError: there is no answer.
        """
        try:
            ranks = self._asked(body)
        except (exceptions.ClientException, AnswerError, ValueError) as error:
            self._paused_until = time.monotonic() + self.options.pause_seconds
            raise UnansweredError(str(error)) from error
        self._paused_until = 0.0
        return ranks

    def _asked(self, body: Any) -> dict[str, int]:  # Any: JSON
        answer = self._connected().post(self.options.url, json=body, raise_exc=False)
        if answer.status_code != OK:
            message = f"{answer.status_code}: {answer.text[:200]}"
            raise AnswerError(message)
        return ranks_of(answer.json())

    def _connected(self) -> Any:  # Any: a session
        if self._session is None:
            login = loading.load_auth_from_conf_options(self._conf, GROUP)
            self._session = loading.load_session_from_conf_options(self._conf, GROUP, auth=login)
        return self._session
