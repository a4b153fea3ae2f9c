"""The Celery application: ``celery -A config.celery_app worker|beat``."""

from __future__ import annotations

import os

from celery.signals import beat_init, setup_logging, worker_init, worker_process_init

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from django.conf import settings

from core.jobs import BEAT_SCHEDULE
from journal.beat import end_on_signals
from journal.collector import collect_rarely
from journal.exporter import close_inherited_exporter, start_exporter
from journal.task_clock import ClockedCelery

app = ClockedCelery("headroom")
app.conf.update(settings.CELERY, beat_schedule=BEAT_SCHEDULE)
app.autodiscover_tasks()
app.autodiscover_tasks(["core"])
app.autodiscover_tasks(related_name="drill_tasks")


@setup_logging.connect
def keep_our_logging(**_: object) -> None:
    """Stop Celery from replacing the logging that the settings configured."""


@worker_init.connect
def tell_metrics_of_worker(**_: object) -> None:
    """Listen for scrapes in the process that owns the pool."""
    start_exporter("worker", port=settings.HEADROOM.metrics.worker_port)


@worker_init.connect
def spare_what_every_process_of_the_pool_has(**_: object) -> None:
    """Keep the collector from what is loaded, and from looking at rows again and again."""
    collect_rarely()


@worker_init.connect
def start_spans(**_: object) -> None:
    """Make spans of tasks, where traces are asked for."""
    if settings.HEADROOM.tracing.endpoint:
        from journal.spans import start_tracing  # noqa: PLC0415 - its packages are an extra

        start_tracing("worker", settings.HEADROOM.tracing)


@worker_process_init.connect
def leave_metrics_to_parent(**_: object) -> None:
    """Close what a process of the pool inherited."""
    close_inherited_exporter()


@beat_init.connect
def tell_metrics_of_beat(**_: object) -> None:
    """Listen for scrapes."""
    start_exporter("beat", port=settings.HEADROOM.metrics.beat_port)


@beat_init.connect
def end_beat_in_order(**_: object) -> None:
    """Take the place of Celery's handlers, which are there by now."""
    end_on_signals()
