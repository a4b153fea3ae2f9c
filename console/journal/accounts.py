"""Users and groups in the admin: every change is audited, and nobody makes themselves more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.db import models, transaction
from django.http import HttpRequest, HttpResponse
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from console.base import CheckedActions, request_actor
from journal.accounts import account_change, account_facts
from journal.middleware import request_id_of
from journal.services import Change, record_changes

RowT = TypeVar("RowT", bound=User | Group)
BEFORE = "headroom_account_before"
PASSWORD = "headroom_password_changed"  # noqa: S105 - the name of a mark
if TYPE_CHECKING:
    DjangoUserAdmin = UserAdmin[User]
else:
    DjangoUserAdmin = UserAdmin


class AuditedAccounts(CheckedActions[RowT]):
    """Writes an audit entry in the transaction of each change."""

    def save_model(self, request: HttpRequest, obj: RowT, form: Any, change: bool) -> None:  # noqa: FBT001 - Django's
        """Save, and remember what was there before."""
        if change:
            stored = type(obj)._default_manager.get(pk=obj.pk)  # noqa: SLF001 - public model API
            setattr(request, BEFORE, account_facts(stored))
        super().save_model(request, obj, form, change)

    def log_addition(self, request: HttpRequest, obj: RowT, message: Any) -> Any:
        """Audit a new account; called after its groups and permissions are saved."""
        self._record(request, account_change(obj, before=None, after=account_facts(obj)))
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: RowT, message: Any) -> Any:
        """Audit a change; called after groups and permissions are saved."""
        after = account_facts(obj)
        verb = "password_changed" if hasattr(request, PASSWORD) else "changed"
        before = getattr(request, BEFORE, after)
        self._record(request, account_change(obj, before=before, after=after, verb=verb))
        return super().log_change(request, obj, message)

    def delete_model(self, request: HttpRequest, obj: RowT) -> None:
        """Delete an account and say so."""
        with transaction.atomic():
            self._record(request, account_change(obj, before=account_facts(obj), after=None))
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet[RowT]) -> None:
        """Delete accounts and say so of each."""
        with transaction.atomic():
            for obj in queryset.order_by("pk"):
                self._record(request, account_change(obj, before=account_facts(obj), after=None))
            super().delete_queryset(request, queryset)

    def _record(self, request: HttpRequest, change: Change) -> None:
        actor = request_actor(request)
        record_changes([change], actor=actor, request_id=request_id_of(request))


class ThemedUserAdmin(DjangoUserAdmin, AuditedAccounts[User]):
    """Users, with the forms of the theme."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_fullwidth = True
    filter_horizontal = ()  # two lists side by side are wider than a small screen

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        """Keep what gives every right to those who have every right."""
        fields = tuple(super().get_readonly_fields(request, obj))
        if request.user.is_superuser:
            return fields
        return (*fields, "is_superuser", "user_permissions")

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Let only superusers change superusers, their passwords above all."""
        return self._may_touch(request, obj) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Let only superusers delete superusers."""
        return self._may_touch(request, obj) and super().has_delete_permission(request, obj)

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[User]:
        """Return the users; for actions of who is none, without superusers."""
        rows: models.QuerySet[User] = super().get_queryset(request)
        is_action = request.method == "POST" and "action" in request.POST
        return rows.filter(is_superuser=False) if is_action and not _is_super(request) else rows

    def user_change_password(
        self,
        request: HttpRequest,
        id: str,  # noqa: A002 - Django's name
        form_url: str = "",
    ) -> HttpResponse:
        """Change the password and write the audit entry together."""
        setattr(request, PASSWORD, True)
        with transaction.atomic():
            return super().user_change_password(request, id, form_url)

    def _may_touch(self, request: HttpRequest, obj: User | None) -> bool:
        return obj is None or not obj.is_superuser or _is_super(request)


class ThemedGroupAdmin(GroupAdmin, AuditedAccounts[Group]):
    """Groups of users."""

    list_fullwidth = True
    filter_horizontal = ()


def _is_super(request: HttpRequest) -> bool:
    return bool(request.user.is_superuser)
