"""Login to the admin at an OpenID Connect provider: its groups say which role a user has.

The library verifies signature, nonce and state. That the token is for us, by the configured
provider, and about the user of whom the provider tells more, is verified here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jwt
import requests
import structlog
from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group, User
from django.core.exceptions import SuspiciousOperation
from django.db import models, transaction
from django.http import HttpRequest
from mozilla_django_oidc.auth import OIDCAuthenticationBackend

from journal.accounts import account_change, account_facts
from journal.actors import Actor
from journal.middleware import request_id_of
from journal.roles import ADMINISTRATOR, OPERATOR, VIEWER
from journal.services import record_changes

log = structlog.get_logger(__name__)

Claims = Mapping[str, Any]  # Any: what a provider says
MAX_NAME = 150
MAX_EMAIL = 254
FAILURES = (requests.RequestException, jwt.PyJWTError, SuspiciousOperation, KeyError, ValueError)


def roles_of(claims: Claims) -> frozenset[str]:
    """Return the roles that the groups of a user stand for."""
    oidc = settings.HEADROOM.oidc
    given = claims.get(oidc.groups_claim)
    groups = {group for group in given if isinstance(group, str)} if isinstance(given, list) else ()
    mapped = {
        VIEWER: oidc.viewer_groups,
        OPERATOR: oidc.operator_groups,
        ADMINISTRATOR: oidc.administrator_groups,
    }
    return frozenset(role for role, wanted in mapped.items() if set(wanted) & set(groups))


class OidcBackend(OIDCAuthenticationBackend):  # type: ignore[misc]  # the library has no types
    """Makes and keeps the user of whom the provider tells; users with a password are not its."""

    def authenticate(self, request: HttpRequest | None, **kwargs: Any) -> User | None:
        """Return the user, or None with a line in the log when anything is not as it must be."""
        try:
            found: User | None = super().authenticate(request, **kwargs)
        except FAILURES as error:
            log.warning("oidc_login_failed", problem=f"{type(error).__name__}: {error}"[:500])
            return None
        return found

    def verify_token(self, token: str, **kwargs: Any) -> dict[str, Any]:
        """Return the claims of a token that the provider made, for us.

        Raises:
            SuspiciousOperation: it is somebody else's, or for somebody else.
        """
        claims: dict[str, Any] = super().verify_token(token, **kwargs)
        oidc = settings.HEADROOM.oidc
        audience = claims.get("aud")
        meant = audience if isinstance(audience, list) else [audience]
        if claims.get("iss") != oidc.issuer or oidc.client_id not in meant or "exp" not in claims:
            raise SuspiciousOperation(
                f"a token of {claims.get('iss')!r} for {audience!r} is not for us"
            )
        return claims

    def get_userinfo(self, access_token: str, id_token: str, payload: Claims) -> Claims:
        """Return what the provider tells of the user that the token is about.

        Raises:
            SuspiciousOperation: it tells of somebody else.
        """
        told: Claims = super().get_userinfo(access_token, id_token, payload)
        if not payload.get("sub") or told.get("sub") != payload["sub"]:
            raise SuspiciousOperation(
                "the user of the token is not the one that the provider tells of"
            )
        return {**payload, **told}

    def verify_claims(self, claims: Claims) -> bool:
        """Return whether the user has a name and a role."""
        name = claims.get(settings.HEADROOM.oidc.username_claim)
        has_name = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
        return has_name and bool(roles_of(claims))

    def filter_users_by_claims(self, claims: Claims) -> models.QuerySet[User]:
        """Return the user of that name."""
        return User.objects.filter(username=claims[settings.HEADROOM.oidc.username_claim])

    def create_user(self, claims: Claims) -> User:
        """Make a user without password."""
        name = claims[settings.HEADROOM.oidc.username_claim]
        with transaction.atomic():
            made, is_new = User.objects.get_or_create(
                username=name, defaults={"password": make_password(None), "is_staff": True}
            )
            return self._keep(made, claims, is_new=is_new)

    def update_user(self, user: User, claims: Claims) -> User:
        """Bring the user's roles up to date."""
        with transaction.atomic():
            locked = User.objects.select_for_update(no_key=True).get(pk=user.pk)
            return self._keep(locked, claims, is_new=False)

    def _keep(self, user: User, claims: Claims, *, is_new: bool) -> User:
        """Give the user the roles of its groups, and no other groups.

        Raises:
            SuspiciousOperation: the name is that of a user of ours, who has a password.
        """
        if user.has_usable_password() or user.is_superuser:
            raise SuspiciousOperation(f"{user.username} is a user of ours, not of the provider")
        before = account_facts(user)
        email = claims.get("email")
        user.email = email[:MAX_EMAIL] if isinstance(email, str) else ""
        user.is_staff = True
        user.save(update_fields=["email", "is_staff"])
        user.groups.set(Group.objects.filter(name__in=roles_of(claims)))
        after = account_facts(user)
        if is_new or before != after:
            change = account_change(
                user, before=None if is_new else before, after=after, reason="OpenID Connect login"
            )
            actor = Actor(name=f"admin:{user.username}")
            record_changes([change], actor=actor, request_id=request_id_of(self.request))
        return user
