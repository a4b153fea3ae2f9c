"""Wiring only: settings, URLs, Celery application, WSGI entry point."""
