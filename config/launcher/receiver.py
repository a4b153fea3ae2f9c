"""The receiver of webhooks that runs beside the demo, and the secret that both sides know."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from config.launcher.places import Checkout
from config.launcher.processes import Child, start_child

ADDRESS = "127.0.0.1"
SECRET_NAME = "demo"  # noqa: S105 - the name of a file
FOLDER_SETTING = "HEADROOM_WEBHOOKS__SECRETS_DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """A receiver that runs, and where it listens."""

    child: Child
    url: str


def secrets_folder(checkout: Checkout) -> Path:
    """Return where the demo keeps secrets of endpoints."""
    return checkout.local / "demo" / "webhook-secrets"


def webhook_settings(checkout: Checkout) -> dict[str, str]:
    """Return the settings by which deliveries may go to this machine."""
    return {
        FOLDER_SETTING: str(secrets_folder(checkout)),
        "HEADROOM_WEBHOOKS__ALLOW_HTTP": "true",
        "HEADROOM_WEBHOOKS__PRIVATE_NETWORKS": '["127.0.0.0/8"]',
    }


def is_ours(checkout: Checkout, env: Mapping[str, str]) -> bool:
    """Return whether an environment has these settings, and not some of the caller's own."""
    return all(env.get(name) == text for name, text in webhook_settings(checkout).items())


def start_receiver(checkout: Checkout, env: Mapping[str, str], port: int) -> Receiver:
    """Start the receiver; what it says of each delivery is in ``.local/log/receiver.log``."""
    log = checkout.logs / "receiver.log"
    log.unlink(missing_ok=True)
    command = [str(checkout.python), "-m", "webhooks.demo_receiver", "--port", str(port)]
    command += ["--secrets", str(kept_secret(checkout))]
    child = start_child("receiver", command, log=log, env=env, cwd=checkout.root)
    return Receiver(child=child, url=f"http://{ADDRESS}:{port}/")


def kept_secret(checkout: Checkout) -> Path:
    """Return the file with the secret, made once and readable by its owner only."""
    path = secrets_folder(checkout) / SECRET_NAME
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        line = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}\n"
        made = path.with_suffix(".new")
        made.unlink(missing_ok=True)
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(line)
        made.rename(path)
    return path
