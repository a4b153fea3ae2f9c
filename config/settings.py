"""Django settings: a translation of :mod:`config.environment`, nothing of its own."""

from __future__ import annotations

import os
import secrets
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.urls import reverse_lazy
from kombu import Queue

from config.environment import ConfigurationError, load_environment
from config.launcher.addresses import NAMES, address
from config.launcher.terminal import LauncherError
from config.logging import logging_tree
from config.queues import QUEUES, STEADY, broker_url
from config.sections_web import AdminSettings, OidcSettings
from console.theme import UNFOLD  # noqa: F401 - a setting

try:
    HEADROOM = load_environment()
    DATABASE_URL, REDIS_URL = (address(os.environ, name) for name in NAMES)
except (ConfigurationError, LauncherError) as error:
    raise SystemExit(f"headroom: configuration error: {error}") from None

if HEADROOM.tracing.endpoint:
    try:
        from journal.spans import add_trace_id
    except ModuleNotFoundError as error:
        raise SystemExit(
            "headroom: configuration error: HEADROOM_TRACING__ENDPOINT: needs the packages of "
            f"requirements-tracing.lock, {error.name} is not installed (docs/operations.md, Traces)"
        ) from None

BASE_DIR = Path(__file__).resolve().parent.parent
# The host agent's library, which hosts without Headroom install by itself.
sys.path.append(str(BASE_DIR / "clients" / "agent"))
DEBUG = HEADROOM.debug
SECRET_KEY = (
    HEADROOM.secret_key.get_secret_value()
    if HEADROOM.secret_key is not None
    else secrets.token_urlsafe(48)
)
ALLOWED_HOSTS = list(HEADROOM.allowed_hosts)
CSRF_TRUSTED_ORIGINS = list(HEADROOM.csrf_trusted_origins)


def scheme_header(admin: AdminSettings) -> tuple[str, str] | None:
    """Return the header of our proxies that says whether TLS ends at them; None without any.

    The address to which a login provider sends people back has the scheme that people see.
    """
    return ("HTTP_X_FORWARDED_PROTO", "https") if admin.proxy_count else None


def _database(url: str, name: str = "DATABASE_URL") -> dict[str, Any]:
    parts = urlsplit(url)
    if parts.scheme not in {"postgres", "postgresql"}:
        raise SystemExit(f"headroom: configuration error: {name}: must be postgresql://…")
    query = dict(parse_qsl(parts.query))
    deadlines = HEADROOM.deadlines
    given_up_seconds = deadlines.keepalive_idle_seconds + (
        deadlines.keepalive_interval_seconds * deadlines.keepalive_count
    )
    ours = {
        "connect_timeout": "5",
        # Of several hosts the one that is the primary now; a standby tells the past.
        "target_session_attrs": "primary",
        "keepalives_idle": str(deadlines.keepalive_idle_seconds),
        "keepalives_interval": str(deadlines.keepalive_interval_seconds),
        "keepalives_count": str(deadlines.keepalive_count),
        "tcp_user_timeout": str(given_up_seconds * 1000),
    }
    query = {**ours, **query}
    return {
        "ENGINE": "journal.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", None) or parts.hostname or "",
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": query,
        "ATOMIC_REQUESTS": False,
    }


def oidc_client(oidc: OidcSettings) -> dict[str, Any]:
    """Return the settings of the library that logs in at an OpenID Connect provider."""
    secret = oidc.client_secret
    return {
        "OIDC_RP_CLIENT_ID": oidc.client_id,
        "OIDC_RP_CLIENT_SECRET": "" if secret is None else secret.get_secret_value(),
        "OIDC_RP_SIGN_ALGO": oidc.sign_algorithm,
        "OIDC_RP_SCOPES": oidc.scopes,
        "OIDC_OP_AUTHORIZATION_ENDPOINT": oidc.authorization_url,
        "OIDC_OP_TOKEN_ENDPOINT": oidc.token_url,
        "OIDC_OP_USER_ENDPOINT": oidc.userinfo_url,
        "OIDC_OP_JWKS_ENDPOINT": oidc.jwks_url,
        "OIDC_TIMEOUT": oidc.timeout_seconds,
        "OIDC_USE_PKCE": True,
        "OIDC_VERIFY_KID": oidc.verify_key_id,
        "LOGIN_REDIRECT_URL_FAILURE": reverse_lazy("admin:login"),
    }


def _standby(url: str) -> dict[str, Any]:
    found = _database(url, "HEADROOM_REPLICA_URLS")
    # Which server it is and how far it is are looked at (journal.standby); it takes no writes.
    ours = {"target_session_attrs": "any", "connect_timeout": "2", "tcp_user_timeout": "2000"}
    options = {**found["OPTIONS"], **ours}
    return {**found, "OPTIONS": options, "TEST": {"MIRROR": "default"}}


DATABASES = {
    "default": _database(DATABASE_URL or "postgresql:///headroom"),
    **{
        f"standby{number}": _standby(url)
        for number, url in enumerate(HEADROOM.replicas_of_database, start=1)
    },
}
REDIS_URL = REDIS_URL or "redis://127.0.0.1:6379/0"

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "console.apps.OperatorAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "axes",
    "django_prometheus",
    "rest_framework",
    "drf_spectacular_sidecar",
    "core",
    "journal",
    "hosts",
    "capacity",
    "commitments",
    "failover",
    "placement",
    "bridge",
    "webhooks",
    "console",
    "config",
]
MIDDLEWARE = [
    "placement.middleware.PlacementMiddleware",  # the outermost: its paths bypass all others
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "journal.middleware.RequestIDMiddleware",
    "journal.access_log.AccessLogMiddleware",
    "journal.middleware.IdentityHeadersMiddleware",
    "journal.middleware.SecurityHeadersMiddleware",
    "journal.middleware.NoNulInAdminMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
    "journal.standby.reads.StandbyReadsMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
]
ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
APPEND_SLASH = True
TEMPLATE_LOADERS = [
    "django.template.loaders.filesystem.Loader",
    "console.theme_templates.Loader",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "OPTIONS": {
            "loaders": [("django.template.loaders.cached.Loader", TEMPLATE_LOADERS)],
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",  # the first: refuses who failed too often
    "django.contrib.auth.backends.ModelBackend",
]
# Rows are counted by address: who fails locks out nobody else, and no name is told apart.
AXES_LOCKOUT_PARAMETERS = ["ip_address"]
AXES_FAILURE_LIMIT = HEADROOM.admin.login_failures
AXES_COOLOFF_TIME = timedelta(seconds=HEADROOM.admin.lockout_seconds)
AXES_CLIENT_IP_CALLABLE = "journal.logins.client_address"
AXES_USERNAME_CALLABLE = "journal.logins.login_name"
AXES_LOCKOUT_CALLABLE = "journal.logins.locked_out"
AXES_ENABLE_ADMIN = False
AXES_DISABLE_ACCESS_LOG = True
AXES_VERBOSE = False
if HEADROOM.oidc.is_on:
    AUTHENTICATION_BACKENDS.append("journal.oidc.OidcBackend")
    globals().update(oidc_client(HEADROOM.oidc))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
LOGIN_REDIRECT_URL = "admin:index"
STATIC_URL = "/static/"
# Files are served from the apps through the finders: nothing is collected, so no root is needed.
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
DATA_UPLOAD_MAX_MEMORY_SIZE = HEADROOM.liquid.max_body_mib << 20

SECURE_CONTENT_TYPE_NOSNIFF = True
SESSION_COOKIE_AGE = HEADROOM.admin.session_seconds
SESSION_COOKIE_SECURE = HEADROOM.secure_cookies
CSRF_COOKIE_SECURE = HEADROOM.secure_cookies
SECURE_SSL_REDIRECT = False
SECURE_PROXY_SSL_HEADER = scheme_header(HEADROOM.admin)
X_FRAME_OPTIONS = "DENY"
# TLS ends at the ingress in front of us; HSTS and the redirect are its business.
SILENCED_SYSTEM_CHECKS = ["security.W004", "security.W008"]


REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "console.api.schema.ListSchema",
}
SPECTACULAR_SETTINGS = {
    "OAS_VERSION": "3.1.0",
    "POSTPROCESSING_HOOKS": [],  # the choices of a field stand with the field
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
}

LOGGING_CONFIG = None
LOGGING = logging_tree(
    json_lines=HEADROOM.log_format == "json",
    level=HEADROOM.log_level,
    file=HEADROOM.log_file,
    more=[add_trace_id] if HEADROOM.tracing.endpoint else [],
)

PROMETHEUS_EXPORT_MIGRATIONS = False
PROMETHEUS_LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, float("inf"))

CELERY: dict[str, Any] = {
    "broker_url": broker_url(REDIS_URL),
    "broker_connection_retry_on_startup": True,
    "broker_transport_options": {
        "socket_connect_timeout": 2,
        "socket_timeout": 5,
        # A nudge is only a hint, beat comes anyway: without a broker it must not hold up an answer,
        # and the library would try for six seconds.
        "max_retries": 1,
        "interval_start": 0,
        "interval_step": 0.1,
        "interval_max": 0.1,
        # A message that a worker has taken comes back after this long: no task may last longer.
        "visibility_timeout": 7200,
    },
    "task_default_queue": STEADY,
    "task_queues": [Queue(name) for name in QUEUES],
    "task_routes": ["core.jobs:route"],
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    # For tasks that set none; those that look at a whole region set more (docs/operations.md).
    "task_time_limit": 90,
    "task_soft_time_limit": 60,
    "task_ignore_result": True,
    "task_serializer": "json",
    "accept_content": ["json"],
    "worker_hijack_root_logger": False,
    "worker_prefetch_multiplier": 1,
    "timezone": "UTC",
    "beat_scheduler": "journal.beat:LeasedScheduler",
}
