"""Where the launcher keeps things: ``.local/`` of the checkout, or outside where that cannot work.

A service started by root runs as an unprivileged user, which may not be able to enter the checkout
(a home folder with mode 0700). Its directory then lies outside, named after the checkout. A path
too long for a Unix socket is replaced by a short private directory, remembered in ``.local/``.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from config.launcher.processes import Account
from config.launcher.terminal import LauncherError

LONGEST_SOCKET_PATH_BYTES = 107
LONGEST_SOCKET_NAME = "/.s.PGSQL.5432"
OUTSIDE = (Path("/var/lib"), Path("/var/tmp"))  # noqa: S108 - checked before use
_ACCOUNTS = ("postgres", "redis", "nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """The directories of one checkout."""

    root: Path

    @property
    def local(self) -> Path:
        """Everything that is made by running, and may be deleted."""
        return self.root / ".local"

    @property
    def venv(self) -> Path:
        """The virtual environment."""
        return self.local / "venv"

    @property
    def python(self) -> Path:
        """The interpreter of the virtual environment."""
        return self.venv / "bin" / "python"

    @property
    def logs(self) -> Path:
        """Log files of the processes that were started."""
        return self.local / "log"


def this_checkout() -> Checkout:
    """Return the checkout this file belongs to."""
    return Checkout(root=Path(__file__).resolve().parents[2])


def service_account() -> Account | None:
    """Return the user that services run as, or nothing when we are not root.

    Raises:
        LauncherError: we are root and the machine has no unprivileged user.
    """
    if os.geteuid() != 0:
        return None
    for name in _ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise LauncherError(
        "started as root, and no unprivileged user (postgres, nobody) exists to run PostgreSQL: "
        "set DATABASE_URL and REDIS_URL, or start as another user"
    )


def can_enter(path: Path, account: Account) -> bool:
    """Return whether ``account`` may pass every directory down to and including ``path``."""
    return all(_may(directory, account, 0o1) for directory in (path, *path.parents))


def can_use_program(program: Path, account: Account) -> bool:
    """Return whether ``account`` may reach and execute ``program``."""
    return can_enter(program.parent, account) and _may(program, account, 0o5)


def _may(path: Path, account: Account, bits: int) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_uid == account.uid:
        shift = 6
    elif status.st_gid == account.gid:
        shift = 3
    else:
        shift = 0
    return (status.st_mode >> shift) & bits == bits


def service_home(
    checkout: Checkout, account: Account | None, outside: Sequence[Path] = OUTSIDE
) -> Path:
    """Return the directory below which services keep their data; it exists.

    Args:
        checkout: Whose services.
        account: The user they run as, if not the present one.
        outside: Where to look for room when that user cannot enter the checkout.

    Raises:
        LauncherError: no place can be used.
    """
    checkout.local.mkdir(exist_ok=True)
    if account is None or can_enter(checkout.local, account):
        return checkout.local
    name = f"headroom-{hashlib.sha256(os.fsencode(checkout.root)).hexdigest()[:12]}"
    for parent in outside:
        if can_enter(parent, account) and own_directory(parent / name, 0o711):
            note = checkout.local / "services-directory"
            note.write_text(f"{parent / name}\n", encoding="utf-8")
            return parent / name
    raise LauncherError(
        f"user {account.name} cannot enter {checkout.root}, and no place outside was usable: "
        "set DATABASE_URL and REDIS_URL, or move the checkout"
    )


def own_directory(path: Path, mode: int) -> bool:
    """Make a directory, or accept one that only we can have made."""
    try:
        path.mkdir(mode=mode)
        path.chmod(mode)
    except FileExistsError:
        status = path.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        return ours and not status.st_mode & 0o022
    except OSError:
        return False
    return True


def private_directory(path: Path, account: Account | None) -> Path:
    """Make a directory that only the service's user (and root) can enter, and return it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is not None:
        os.chown(path, account.uid, account.gid)
    path.chmod(0o700)
    return path


def socket_directory(wanted: Path, account: Account | None, memory: Path) -> Path:
    """Return a private directory whose socket paths fit into the 107 bytes Linux allows.

    Args:
        wanted: The directory to use when it is short enough.
        account: Who owns it.
        memory: File that remembers the substitute.
    """
    if len(os.fsencode(wanted)) + len(LONGEST_SOCKET_NAME) <= LONGEST_SOCKET_PATH_BYTES:
        return private_directory(wanted, account)
    owner = os.geteuid() if account is None else account.uid
    with locked(memory.with_suffix(".lock")):
        if memory.exists():
            known = Path(memory.read_text(encoding="utf-8").strip())
            if _is_private(known, owner):
                return known
        made = Path(tempfile.mkdtemp(prefix="headroom-"))
        if account is not None:
            os.chown(made, account.uid, account.gid)
        memory.write_text(f"{made}\n", encoding="utf-8")
    return made


def _is_private(path: Path, owner: int) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    is_directory = stat.S_ISDIR(status.st_mode)
    return is_directory and status.st_uid == owner and not status.st_mode & 0o077


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive file lock; the kernel drops it when this process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def locked_or_none(path: Path) -> Iterator[bool]:
    """Try to hold an exclusive file lock; yield whether we do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
