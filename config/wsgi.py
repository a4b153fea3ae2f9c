"""WSGI entry point: ``granian --interface wsgi config.wsgi:application``."""

from __future__ import annotations

import os
from functools import partial

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

django_application = get_wsgi_application()

from celery import current_app  # noqa: E402 - needs the settings
from django.conf import settings  # noqa: E402 - likewise
from django.db.migrations.loader import MigrationLoader  # noqa: E402 - likewise

from config.listening import guarded  # noqa: E402 - likewise
from config.server.beginnings import in_each_process  # noqa: E402 - likewise
from journal.collector import collect_rarely  # noqa: E402 - likewise
from placement.gateway.current import look_at_start  # noqa: E402 - likewise
from placement.warming import warm_up  # noqa: E402 - likewise
from placement.wsgi import placement_first  # noqa: E402 - likewise

application = guarded(placement_first(django_application), settings.HEADROOM)
if settings.HEADROOM.tracing.endpoint:
    from journal.spans import start_tracing, traced

    in_each_process(partial(start_tracing, "web", settings.HEADROOM.tracing))
    application = traced(application)
current_app.loader.import_default_modules()  # else the first nudge of a worker would
MigrationLoader(None)  # else the first look at whether a process is ready would
collect_rarely()
in_each_process(warm_up)
in_each_process(look_at_start)
