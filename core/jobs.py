"""The one job runner: what a task declares beside itself, and what each of its runs gets.

A job names its queue, its time limits and its entries in beat's schedule where it stands;
``config`` only collects them. Each run has an actor and a request id, which its log lines bear.
What must not run beside itself takes a lease in its service (:mod:`journal.leases`), so that a
command that calls the service is held off as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar
from uuid import uuid4

import structlog
from celery import current_app, shared_task
from celery.schedules import crontab, schedule

from journal.actors import Actor, task_actor
from journal.clock import database_now
from journal.errors import Busy
from journal.outages import is_retryable
from journal.tracing import CORRELATION_PREFIX, with_global_request_id

log = structlog.get_logger(__name__)

#: ``soon`` is for what has to happen within seconds and ends within two minutes, ``long`` for what
#: may take many minutes and can wait, ``steady`` for the rest (docs/operations.md).
Queue = Literal["soon", "steady", "long"]
#: An entry of beat's schedule: its name, under which a row keeps when it was sent last, and what it
#: is to Celery.
Beat = tuple[str, dict[str, Any]]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

ATTEMPTS: Final = 3
NIGHTLY_EXPIRES_SECONDS: Final = 7200

#: What the jobs that were loaded so far declared.
BEAT_SCHEDULE: Final[dict[str, dict[str, Any]]] = {}
QUEUE_OF: Final[dict[str, Queue]] = {}


@dataclass(slots=True, kw_only=True)
class Run:
    """One run of a job; services that carry more through theirs add it in a class of their own.

    Attributes:
        now: When it began, by the database's time.
    """

    actor: Actor
    request_id: str
    now: datetime = field(default_factory=database_now)


def every(seconds: float, entry: str, *arguments: str, queue: Queue | None = None) -> Beat:
    """Have beat send a job at an interval; what nobody began until the next time is dropped.

    Args:
        seconds: Between two sendings.
        entry: Name of the entry: never renamed.
        arguments: What the job is given.
        queue: Another queue than the job's.
    """
    options = {"expires": seconds, **({"queue": queue} if queue else {})}
    return entry, {"schedule": schedule(run_every=seconds), "args": arguments, "options": options}


def nightly(hour: int, minute: int, entry: str) -> Beat:
    """Have beat send a job once a night, UTC; after two hours it is too late to begin."""
    at = crontab(hour=str(hour), minute=str(minute))
    return entry, {"schedule": at, "options": {"expires": NIGHTLY_EXPIRES_SECONDS}}


def job(
    name: str,
    *beats: Beat,
    limits: tuple[int, int],
    queue: Queue = "steady",
    id_prefix: str = CORRELATION_PREFIX,
) -> Callable[[Callable[Concatenate[Run, Parameters], Result]], Callable[Parameters, Result]]:
    """Make a function a task that a worker runs; it is given its run first.

    Args:
        name: By which it is sent.
        beats: When beat sends it; none for what only others send.
        limits: Seconds after which it is asked to end, and killed.
        queue: Where it waits.
        id_prefix: What the request id of a run begins with.
    """
    QUEUE_OF[name] = queue
    BEAT_SCHEDULE.update({entry: {"task": name, **options} for entry, options in beats})

    def declared(
        work: Callable[Concatenate[Run, Parameters], Result],
    ) -> Callable[Parameters, Result]:
        @shared_task(name=name, soft_time_limit=limits[0], time_limit=limits[1])
        @wraps(work)
        def run_job(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            with with_global_request_id(f"{id_prefix}{uuid4()}") as request_id:
                return work(Run(actor=task_actor(name), request_id=request_id), *args, **kwargs)

        return run_job

    return declared


def route(name: str, *_: object, **__: object) -> dict[str, str] | None:
    """Return the queue of a task as Celery's router wants it."""
    if name not in QUEUE_OF:  # jobs are loaded by workers and beat, and by others at the first need
        current_app.loader.import_default_modules()
    return {"queue": QUEUE_OF[name]} if name in QUEUE_OF else None


def is_passing(error: Exception) -> bool:
    """Return whether the same work may succeed at once: others had what it needs for a moment."""
    return isinstance(error, Busy) or is_retryable(error)


def tried(
    work: Callable[[], Result],
    *,
    event: str,
    again_after: Callable[[Exception], bool] = is_passing,
    given_up: Exception | None = None,
    zone: str = "",
) -> Result:
    """Return what work returns, after three attempts at the most.

    Args:
        work: Begins anew each time: a transaction of its own.
        event: Name of the log line of each attempt that failed.
        again_after: Whether the same work may succeed at once after an error; others go on.
        given_up: Raised after the last attempt; its own error when left out.
        zone: Where, for the log line.
    """
    attempt = 1
    while True:
        try:
            return work()
        except Exception as error:
            if not again_after(error):
                raise
            facts = getattr(error, "facts", {})
            log.info(event, attempt=attempt, error=str(error), facts=facts, zone=zone)
            if attempt == ATTEMPTS and given_up is not None:
                raise given_up from error
            if attempt == ATTEMPTS:
                raise
        attempt += 1
