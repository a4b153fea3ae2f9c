"""The environments that the commands give to Headroom; production gives its own."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from config.launcher.places import Checkout
from config.launcher.receiver import webhook_settings

_PREFIX = "HEADROOM_"
_GATEWAY = f"{_PREFIX}GATEWAY__"
_WEBHOOKS = f"{_PREFIX}WEBHOOKS__"
_LAUNCHER_ONLY = ("RUN_POSTGRES", "RUN_REDIS")
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"


def demo_environment(
    checkout: Checkout, environ: Mapping[str, str], services: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the demo: defaults for one machine, the caller's settings win."""
    defaults = {
        "HEADROOM_DEBUG": "true",
        "HEADROOM_AUTH": "noauth",
        "HEADROOM_LISTEN_ADDRESS": "127.0.0.1",
        "HEADROOM_ALLOWED_HOSTS": "127.0.0.1,localhost",
        "HEADROOM_SECURE_COOKIES": "false",
        # One page tells all: the demo's processes share a directory.
        "HEADROOM_METRICS__WORKER_PORT": "0",
        "HEADROOM_METRICS__BEAT_PORT": "0",
        "HEADROOM_SECRET_KEY": _kept_secret(checkout),
    }
    if "HEADROOM_SECRET_KEY_FILE" in environ:
        del defaults["HEADROOM_SECRET_KEY"]
    if not any(name.startswith(_WEBHOOKS) for name in environ):
        defaults |= webhook_settings(checkout)
    return {**defaults, **_without(environ, _LAUNCHER_ONLY), **services}


def with_placement_checks(env: Mapping[str, str], url: str) -> dict[str, str]:
    """Return an environment whose workers check the demo's own Placement API.

    The token is any: the demo asks for none. Whoever has a gateway of his own keeps to it.
    """
    if any(name.startswith(_GATEWAY) for name in env):
        return dict(env)
    return {**env, f"{_GATEWAY}CHECKS_URL": url, f"{_GATEWAY}TOKEN": "admin"}


def tool_environment(
    checkout: Checkout, environ: Mapping[str, str], services: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of tests, lint and benchmarks: production-like, always the same.

    Settings of the caller are left out, so that the outcome does not depend on them. Whoever wants
    no bytecode beside the sources has it in ``.local``: without any, each of the many processes
    that tests start would compile all of them.
    """
    inherited = {name: text for name, text in environ.items() if not name.startswith(_PREFIX)}
    if inherited.pop(_NO_BYTECODE, ""):
        inherited["PYTHONPYCACHEPREFIX"] = str(checkout.local / "pycache")
    return {
        **_without(inherited, (*_LAUNCHER_ONLY, "PROMETHEUS_MULTIPROC_DIR")),
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "HEADROOM_DEBUG": "false",
        "HEADROOM_AUTH": "token",
        "HEADROOM_SECRET_KEY": secrets.token_urlsafe(64),
        **services,
    }


def _without(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: text for name, text in environ.items() if name not in names}


def _kept_secret(checkout: Checkout) -> str:
    """Return the demo's signing key: made once, so that sessions survive a restart."""
    path = checkout.local / "demo-secret"
    path.parent.mkdir(exist_ok=True)
    try:
        path.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        kept = path.read_text(encoding="utf-8").strip()
        if kept:
            return kept
    secret = secrets.token_urlsafe(48)
    path.write_text(secret, encoding="utf-8")
    return secret
