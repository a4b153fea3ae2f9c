"""Hashing of passwords as in production, at a millionth of its cost."""

from __future__ import annotations

from django.contrib.auth.hashers import PBKDF2PasswordHasher


class QuickHasher(PBKDF2PasswordHasher):
    """Strong hashing costs most of the time of a test that signs in; servers read these too."""

    iterations = 1
