"""Registry entry of the wiring itself: every process that runs Django knows the Celery app."""

from __future__ import annotations

from django.apps import AppConfig


class WiringConfig(AppConfig):
    """Load the Celery application together with the apps."""

    name = "config"

    def ready(self) -> None:
        """Make ``current_app`` the configured application in web processes and commands too.

        Being the last app, it also reads the operator's policy: every rule is registered by now.

        Raises:
            SystemExit: the policy file cannot be used.
        """
        from config import celery_app  # noqa: F401, PLC0415 - apps first
        from journal.policy import UnusablePolicyError, current_policy  # noqa: PLC0415 - apps first

        try:
            current_policy()
        except UnusablePolicyError as error:
            raise SystemExit(
                f"headroom: configuration error: HEADROOM_POLICY_FILE: {error}"
            ) from None
