"""The agent's configuration: environment before file before default (spec hosts, A.2).

Our environment names are the file's keys in capitals, ``HEADROOM_AGENT__CAPACITY__DISK``. Two
generations of names of another agent are accepted too, with its lenient spelling of sizes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from urllib.parse import urlsplit

from headroom_host_agent.process.settings import AgentSettings, LeaseLoss
from headroom_host_agent.resources.facts import Counting
from headroom_host_agent.resources.sizes import (
    SizeError,
    parse_bandwidth,
    parse_bytes,
    parse_disk_io,
)

DEFAULT_FILE = Path("/etc/headroom/host-agent.toml")
PREFIX = "HEADROOM_AGENT__"
PROFILES: Mapping[str, Mapping[str, str]] = {
    "": {},
    "hypeman": {
        "oversubscription.cpu": "4.0",
        "oversubscription.network": "2.0",
        "oversubscription.disk_io": "2.0",
        "limits.max_vcpus_per_instance": "16",
        "limits.max_memory_per_instance": "32GB",
    },
}


class ConfigurationError(Exception):
    """A value is not allowed; one line that names key, value and what is allowed."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key} = {value!r}: {allowed}")
        self.key, self.value, self.allowed = key, value, allowed


class _NotAllowedError(ValueError):
    """Carries what is allowed to where key and value are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """A key of the file.

    Attributes:
        field: Of ``AgentSettings``.
        read: (text, strict) -> value.
        aliases: Environment names of another agent, the newer first.
    """

    field: str
    read: Callable[[str, bool], object]
    aliases: tuple[str, ...] = ()


def load_settings(file: Path | None, environment: Mapping[str, str]) -> AgentSettings:
    """Return the settings of a file (None: no file) and an environment.

    Raises:
        ConfigurationError: A key is unknown, a value is not allowed, or two names of one key
            disagree.
    """
    in_file = _read_file(file) if file is not None else {}
    set_names = {name.upper(): text for name, text in environment.items() if text}
    _refuse_unknown(in_file, set_names)
    profile = _profile(in_file, set_names)
    values: dict[str, object] = {}
    for name, key in KEYS.items():
        value = _of_environment(name, key, set_names)
        if value is None and name in in_file:
            value = _value(name, key, in_file[name], strict=True)
        if value is None and name in profile:
            value = _value(name, key, profile[name], strict=True)
        if value is not None:
            values[key.field] = value
    if "machine.slice" in values.get("cap_slices", ()) and not values.get("allow_machine_slice"):  # type: ignore[operator]  # a tuple
        allowed = "capping machine.slice throttles VMs that run: needs allow_machine_slice"
        raise ConfigurationError("capacity_slice.cap_slices", "machine.slice", allowed)
    return AgentSettings(**values)  # type: ignore[arg-type]  # each key reads its field's type


def _own_name(key: str) -> str:
    return PREFIX + key.upper().replace(".", "__")


def _of_environment(name: str, key: _Key, environment: Mapping[str, str]) -> object:
    """Return the value that the environment gives, None when it gives none."""
    given = [
        (variable, _value(variable, key, environment[variable], strict=is_own))
        for variable, is_own in (
            (_own_name(name), True),
            *((alias, False) for alias in key.aliases),
        )
        if variable in environment
    ]
    for variable, value in given[1:]:
        if value != given[0][1]:
            raise ConfigurationError(
                variable, environment[variable], f"must not differ from {given[0][0]}"
            )
    return given[0][1] if given else None


def _value(name: str, key: _Key, text: str, *, strict: bool) -> object:
    try:
        return key.read(text, strict)
    except SizeError as error:
        allowed = f"{error.rule}, for example {error.example!r}"
        raise ConfigurationError(name, text, allowed) from None
    except _NotAllowedError as error:
        raise ConfigurationError(name, text, str(error)) from None


def _read_file(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            return dict(_flattened(tomllib.load(file)))
    except OSError as error:
        raise ConfigurationError("file", str(path), f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError("file", str(path), f"is no TOML: {error}") from None


def _flattened(table: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{above}{key}.")
        elif isinstance(value, bool):
            yield above + key, str(value).lower()
        elif isinstance(value, str | int | float):
            yield above + key, str(value)
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            yield above + key, ",".join(value)
        else:
            raise ConfigurationError(above + key, value, "must be a text, number, true or false")


def _refuse_unknown(in_file: Mapping[str, str], environment: Mapping[str, str]) -> None:
    for key in in_file:
        if key not in KEYS and key != "profile":
            raise ConfigurationError(key, in_file[key], "is no key of this agent")
    own = {_own_name(key) for key in (*KEYS, "profile")}
    for variable in environment:
        if variable.startswith(PREFIX) and variable not in own:
            raise ConfigurationError(variable, environment[variable], "is no key of this agent")


def _profile(in_file: Mapping[str, str], environment: Mapping[str, str]) -> Mapping[str, str]:
    name = environment.get(_own_name("profile"), in_file.get("profile", ""))
    if name not in PROFILES:
        known = ", ".join(sorted(filter(None, PROFILES)))
        raise ConfigurationError("profile", name, f"must be one of: {known}")
    return PROFILES[name]


def _whole(least: int) -> Callable[[str, bool], int]:
    def read(text: str, strict: bool) -> int:  # noqa: FBT001  # as all readers
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < least:
            raise _NotAllowedError(f"must be a whole number, at least {least}")
        return int(text)

    return read


def _ratio(least: Decimal | None) -> Callable[[str, bool], Decimal]:
    allowed = "above 0" if least is None else f"at least {least}"

    def read(text: str, strict: bool) -> Decimal:  # noqa: FBT001
        ratio = _decimal(text)
        if ratio is None or ratio <= 0 or ratio >= 10**6 or (least is not None and ratio < least):
            raise _NotAllowedError(f"must be a number {allowed}")
        if ratio != ratio.quantize(Decimal("0.001")):
            raise _NotAllowedError("must have three decimals at most")
        return ratio

    return read


def _share(text: str, strict: bool) -> Decimal:  # noqa: FBT001
    share = _decimal(text)
    if share is None or not 0 < share <= 1:
        raise _NotAllowedError("must be a number above 0 and at most 1")
    return share


def _decimal(text: str) -> Decimal | None:
    try:
        number = Decimal(text.strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _bytes(text: str, strict: bool) -> int:  # noqa: FBT001
    return parse_bytes(text, strict=strict)


def _bandwidth(text: str, strict: bool) -> int:  # noqa: FBT001
    rate = parse_bandwidth(text, strict=strict)
    if rate < 0:
        raise _NotAllowedError("must not be negative")
    return rate


def _disk_io(text: str, strict: bool) -> int:  # noqa: FBT001
    return parse_disk_io(text, strict=strict)


def _counting(text: str, strict: bool) -> Counting:  # noqa: FBT001
    try:
        return Counting(text)
    except ValueError:
        raise _NotAllowedError("must be openstack or active") from None


def _flag(text: str, strict: bool) -> bool:  # noqa: FBT001
    if text.lower() not in ("true", "false"):
        raise _NotAllowedError("must be true or false")
    return text.lower() == "true"


def _interface(text: str, strict: bool) -> str:  # noqa: FBT001
    if not re.fullmatch(r"[^/\s]{1,15}", text) or text in (".", ".."):
        raise _NotAllowedError("must be the name of a network interface")
    return text


def _vendors(text: str, strict: bool) -> tuple[str, ...]:  # noqa: FBT001
    vendors = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    if not all(re.fullmatch(r"[0-9a-f]{4}", vendor) for vendor in vendors):
        raise _NotAllowedError("must be PCI vendors of four hexadecimal digits each")
    return vendors


def _folder(text: str, strict: bool) -> Path:  # noqa: FBT001
    if not text.startswith("/") or "\0" in text:
        raise _NotAllowedError("must be an absolute path")
    return Path(text)


def _url(text: str, strict: bool) -> str:  # noqa: FBT001
    try:
        parts = urlsplit(text)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_right = is_right and parts.port != 0 and not (parts.query or parts.username)
    except ValueError:
        is_right = False
    if not is_right or not text.isascii() or not text.isprintable() or " " in text:
        raise _NotAllowedError("must be an address like https://headroom.example")
    return text.rstrip("/")


def _time_of_day(text: str, strict: bool) -> int:  # noqa: FBT001
    found = re.fullmatch(r"([01][0-9]|2[0-3]):([0-5][0-9])", text.strip())
    if found is None:
        raise _NotAllowedError("must be a time of the day like 00:00")
    return int(found[1]) * 60 + int(found[2])


def _lease_loss(text: str, strict: bool) -> LeaseLoss:  # noqa: FBT001
    try:
        return LeaseLoss(text)
    except ValueError:
        raise _NotAllowedError("must be hold, stop_new or release") from None


def _names(text: str, strict: bool) -> tuple[str, ...]:  # noqa: FBT001
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name) for name in names):
        raise _NotAllowedError("must be names of types")
    return names


def _slices(text: str, strict: bool) -> tuple[str, ...]:  # noqa: FBT001
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not all(re.fullmatch(r"[A-Za-z0-9_@:.\\-]{1,100}\.slice", name) for name in names):
        raise _NotAllowedError("must be names like user.slice")
    return names


def _libvirt(text: str, strict: bool) -> str:  # noqa: FBT001
    if not re.fullmatch(r"[a-z+]{2,20}://[!-~]{1,200}", text):
        raise _NotAllowedError("must be an address like qemu:///system")
    return text


def _port(text: str, strict: bool) -> int:  # noqa: FBT001
    port = _whole(0)(text, strict)
    if port >= 2**16:
        raise _NotAllowedError("must be a port, or 0 for none")
    return port


def _aliased(key: str, older: str) -> tuple[str, ...]:
    return (key.upper().replace(".", "__"), older)


_AT_LEAST_ONE = Decimal("1.0")
KEYS: Mapping[str, _Key] = {
    "capacity.cpu": _Key(field="capacity_cpu", read=_whole(1)),
    "capacity.memory": _Key(field="capacity_memory", read=_bytes),
    "capacity.disk": _Key(
        field="capacity_disk", read=_bytes, aliases=_aliased("capacity.disk", "DISK_LIMIT")
    ),
    "capacity.network": _Key(
        field="capacity_network",
        read=_bandwidth,
        aliases=_aliased("capacity.network", "NETWORK_LIMIT"),
    ),
    "capacity.disk_io": _Key(
        field="capacity_disk_io",
        read=_disk_io,
        aliases=_aliased("capacity.disk_io", "DISK_IO_LIMIT"),
    ),
    **{
        f"oversubscription.{resource}": _Key(
            field=f"oversubscription_{resource}",
            read=_ratio(_AT_LEAST_ONE if resource in ("cpu", "memory") else None),
            aliases=_aliased(f"oversubscription.{resource}", f"OVERSUB_{resource.upper()}"),
        )
        for resource in ("cpu", "memory", "disk", "network", "disk_io")
    },
    "limits.max_image_storage": _Key(
        field="max_image_storage",
        read=_share,
        aliases=_aliased("limits.max_image_storage", "MAX_IMAGE_STORAGE"),
    ),
    "limits.max_vcpus_per_instance": _Key(
        field="max_vcpus_per_instance",
        read=_whole(0),
        aliases=_aliased("limits.max_vcpus_per_instance", "MAX_VCPUS_PER_INSTANCE"),
    ),
    "limits.max_memory_per_instance": _Key(
        field="max_memory_per_instance",
        read=_bytes,
        aliases=_aliased("limits.max_memory_per_instance", "MAX_MEMORY_PER_INSTANCE"),
    ),
    "limits.max_overlay_per_instance": _Key(field="max_overlay_per_instance", read=_bytes),
    "network.uplink_interface": _Key(
        field="uplink_interface",
        read=_interface,
        aliases=_aliased("network.uplink_interface", "UPLINK_INTERFACE"),
    ),
    **{
        f"network.{direction}_burst_multiplier": _Key(
            field=f"{direction}_burst_multiplier",
            read=_whole(1),
            aliases=_aliased(
                f"network.{direction}_burst_multiplier", f"{direction.upper()}_BURST_MULTIPLIER"
            ),
        )
        for direction in ("upload", "download")
    },
    "reserved_for_host.cpu": _Key(field="reserved_cpu", read=_whole(0)),
    "reserved_for_host.memory": _Key(field="reserved_memory", read=_bytes),
    "reserved_for_host.disk": _Key(field="reserved_disk", read=_bytes),
    "counting": _Key(field="counting", read=_counting),
    "defaults.apply_oversubscription": _Key(field="apply_oversubscription", read=_flag),
    "gpu.passthrough_vendors": _Key(field="gpu_vendors", read=_vendors),
    **{
        f"directories.{kind}": _Key(field=f"{kind}_directory", read=_folder)
        for kind in ("images", "oci_cache", "volumes")
    },
    "server.url": _Key(field="server_url", read=_url),
    "server.ca": _Key(field="server_ca", read=_folder),
    "report.interval": _Key(field="report_interval_seconds", read=_whole(1)),
    "poll.min_interval": _Key(field="poll_interval_seconds", read=_whole(1)),
    "verify.interval": _Key(field="verify_interval_seconds", read=_whole(1)),
    "expire.interval": _Key(field="expire_interval_seconds", read=_whole(1)),
    "job.deadline": _Key(field="job_deadline_seconds", read=_whole(1)),
    "cleanup.at": _Key(field="cleanup_minute", read=_time_of_day),
    "cleanup.max_per_run": _Key(field="cleanup_most", read=_whole(1)),
    "fence.on_lease_loss": _Key(field="on_lease_loss", read=_lease_loss),
    "fence.release_after": _Key(field="release_after_seconds", read=_whole(1)),
    "enforce": _Key(field="enforce", read=_flag),
    "provisioners.enabled": _Key(field="provisioners", read=_names),
    "capacity_slice.cap_slices": _Key(field="cap_slices", read=_slices),
    "capacity_slice.allow_machine_slice": _Key(field="allow_machine_slice", read=_flag),
    "libvirt.uri": _Key(field="libvirt_uri", read=_libvirt),
    "metrics.port": _Key(field="metrics_port", read=_port),
    "data_dir": _Key(field="data_dir", read=_folder, aliases=("DATA_DIR",)),
}
