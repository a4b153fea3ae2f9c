"""Reservations and results as the reference's engine writes them (spec hosts, B.1, B.10)."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

NEVER_NS = 2**63 - 1
ZERO_TIME = datetime(1, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SIGNATURE_BYTES = 64
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


class WireError(ValueError):
    """A document is not what it should be; the text says which field."""


class ResultState(StrEnum):
    """How a workload ended; the older wire has its position here as a number."""

    ERROR = "error"
    OK = "ok"
    DELETED = "deleted"


_NUMBERS = tuple(ResultState)


def state_name(number: int) -> str:
    """Return the state of a number of the wire, ``UNKNOWN`` for others."""
    return _NUMBERS[number].value if 0 <= number < len(_NUMBERS) else "UNKNOWN"


def state_number(state: ResultState) -> int:
    """Return the number of a state on the wire. 0 is an error: a default reads as a failure."""
    return _NUMBERS.index(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a workload.

    Attributes:
        created: When it was sent; ``ZERO_TIME`` when never.
        message: The error's text.
        data: JSON, byte for byte.
        signature: Empty when there is none.
    """

    type: str = ""
    id: str = ""
    created: datetime = ZERO_TIME
    state: ResultState = ResultState.ERROR
    message: str = ""
    data: bytes = b""
    signature: bytes = b""

    @property
    def is_nil(self) -> bool:
        """Whether it says nothing: servers send results that have a type and no more."""
        return self.created in (ZERO_TIME, EPOCH) and self.data in (b"", b"null")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One job for one host.

    Attributes:
        id: ``<reservation>-<workload>``.
        data: Arguments as JSON, byte for byte: signatures cover it.
        duration_ns: Nanoseconds from ``created``; ``NEVER_NS`` never ends.
        reference: Id of the older reservation that this one replaces; empty for none.
        version: Of the secrets in ``data``.
        tag: For people; never on the wire.
        attempt: Which try of the server's this is; as what follows only in our documents.
        seq: The host's number of the change.
        fence_epoch: The host's epoch when the server signed it.
        resources: What it takes: CPUs, else bytes, by the names of resources.
    """

    id: str
    node_id: str
    user_id: str
    type: str
    data: bytes = b""
    created: datetime = ZERO_TIME
    duration_ns: int = 0
    signature: bytes = b""
    to_delete: bool = False
    reference: str = ""
    result: Result = field(default_factory=Result)
    version: int = 0
    tag: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    attempt: int = 1
    seq: int = 0
    fence_epoch: int = 0
    resources: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def expires_at(self) -> datetime | None:
        """When it ends; None when never, also when that is beyond the calendar."""
        return expiry(self.created, self.duration_ns)

    def expired(self, now: datetime) -> bool:
        """Return whether its end is strictly before now, a time of the server."""
        end = self.expires_at
        return end is not None and now > end


def expiry(created: datetime, duration_ns: int) -> datetime | None:
    """Return when something ends, to the microsecond below; None beyond the calendar."""
    if duration_ns >= NEVER_NS:
        return None
    try:
        return created + timedelta(microseconds=duration_ns // 1000)
    except OverflowError:
        return None if duration_ns > 0 else ZERO_TIME


def append_tag(tag: Mapping[str, str] | None, more: Mapping[str, str]) -> dict[str, str]:
    """Return both tags, ``more`` over ``tag``."""
    return {**(tag or {}), **more}


def format_tag(tag: Mapping[str, str]) -> str:
    """Return ``k: v, k2: v2``, sorted by key."""
    return ", ".join(f"{key}: {tag[key]}" for key in sorted(tag))


def reservation_from_json(document: bytes) -> Reservation:
    """Return the reservation of a JSON object; ``data`` keeps its bytes, unknown keys are skipped.

    Raises:
        WireError: It is no such object.
    """
    fields = _Fields(document)
    result = fields.raw("result")
    return Reservation(
        id=fields.text("id"),
        node_id=fields.text("node_id"),
        user_id=fields.text("user_id"),
        type=fields.text("type"),
        data=fields.raw("data"),
        created=fields.time("created"),
        duration_ns=fields.number("duration"),
        signature=fields.signature("signature", _from_base64),
        to_delete=fields.flag("to_delete"),
        reference=fields.text("reference"),
        result=result_from_json(result) if result not in (b"", b"null") else Result(),
        version=fields.number("version"),
    )


def reservation_to_json(reservation: Reservation) -> bytes:
    """Return a reservation's JSON; ``data`` and ``signature`` are left out when empty."""
    values: dict[str, bytes] = {
        "id": _text(reservation.id),
        "node_id": _text(reservation.node_id),
        "user_id": _text(reservation.user_id),
        "type": _text(reservation.type),
    }
    if reservation.data:
        values["data"] = reservation.data
    values["created"] = _text(format_time(reservation.created))
    values["duration"] = str(reservation.duration_ns).encode()
    if reservation.signature:
        values["signature"] = _text(base64.b64encode(reservation.signature).decode())
    values["to_delete"] = b"true" if reservation.to_delete else b"false"
    values["reference"] = _text(reservation.reference)
    values["result"] = result_to_json(reservation.result)
    values["version"] = str(reservation.version).encode()
    return _object(values)


def result_from_json(document: bytes) -> Result:
    """Return the result of a JSON object.

    Raises:
        WireError: It is no such object.
    """
    fields = _Fields(document)
    number = fields.number("state")
    if state_name(number) == "UNKNOWN":
        raise WireError(f"state: {number} is unknown")
    return Result(
        type=fields.text("type"),
        id=fields.text("id"),
        created=fields.time("created"),
        state=_NUMBERS[number],
        message=fields.text("message"),
        data=fields.raw("data_json"),
        signature=fields.signature("signature", bytes.fromhex),
    )


def result_to_json(result: Result) -> bytes:
    """Return a result's JSON: the state is a number, the signature hexadecimal."""
    return _object(
        {
            "type": _text(result.type),
            "id": _text(result.id),
            "created": _text(format_time(result.created)),
            "state": str(state_number(result.state)).encode(),
            "message": _text(result.message),
            "data_json": result.data or b"null",
            "signature": _text(result.signature.hex()),
        }
    )


def format_time(time: datetime) -> str:
    """Return a time by RFC 3339, in UTC, without zeros at its end."""
    utc = time.astimezone(UTC)
    fraction = f".{utc.microsecond:06d}".rstrip("0").rstrip(".")
    return f"{utc.year:04d}{utc:-%m-%dT%H:%M:%S}{fraction}Z"


def parse_time(text: str) -> datetime:
    """Return the time of a text by RFC 3339, to the microsecond below.

    Raises:
        ValueError: It is none, or beyond the calendar in UTC.
    """
    pattern = r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8})(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
    found = re.fullmatch(pattern, text)
    if found is None:
        raise ValueError(f"{text!r} is no time by RFC 3339")
    whole, fraction, zone = found.groups()
    time = datetime.fromisoformat(whole + (fraction or "")[:7] + zone.replace("Z", "+00:00"))
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{text!r} is beyond the calendar") from None


def _text(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


def _object(values: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(_text(key) + b":" + value for key, value in values.items()) + b"}"


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


class _Fields:
    """Fields of a JSON object with the bytes that each value was written in."""

    def __init__(self, document: bytes) -> None:
        try:
            self._values = _members(document.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise WireError(f"no JSON object: {error or 'nested too deep'}") from None

    def raw(self, name: str) -> bytes:
        return self._values[name][1].encode() if name in self._values else b""

    def text(self, name: str) -> str:
        value = self._value(name, "")
        if not isinstance(value, str):
            raise WireError(f"{name}: must be a text")
        return value

    def number(self, name: str) -> int:
        value = self._value(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
            raise WireError(f"{name}: must be an integer of 64 bits")
        return value

    def flag(self, name: str) -> bool:
        value = self._value(name, False)  # noqa: FBT003  # a default of any type
        if not isinstance(value, bool):
            raise WireError(f"{name}: must be true or false")
        return value

    def time(self, name: str) -> datetime:
        text = self.text(name)
        try:
            return parse_time(text) if text else ZERO_TIME
        except ValueError as error:
            raise WireError(f"{name}: {error}") from None

    def signature(self, name: str, read: Callable[[str], bytes]) -> bytes:
        text = self.text(name)
        try:
            signature = read(text)
        except ValueError:
            raise WireError(f"{name}: must be an encoded signature") from None
        if len(signature) not in (0, SIGNATURE_BYTES):
            raise WireError(f"{name}: must have {SIGNATURE_BYTES} bytes")
        return signature

    def _value(self, name: str, otherwise: object) -> object:
        value = self._values.get(name, (None, ""))[0]
        return otherwise if value is None else value


def _members(text: str) -> dict[str, tuple[object, str]]:
    """Return key -> (value, its text) of the object that a text is.

    Raises:
        ValueError: The text is no object, or a key comes twice.
    """
    members: dict[str, tuple[object, str]] = {}
    place = _after(text, _skip(text, 0), "{")
    if text[place : place + 1] == "}":
        place += 1
    else:
        while True:
            key, place = _DECODER.raw_decode(text, place)
            if not isinstance(key, str) or key in members:
                raise ValueError(f"a wrong or repeated key: {key!r}")
            place = _after(text, _skip(text, place), ":")
            value, end = _DECODER.raw_decode(text, place)
            members[key] = (value, text[place:end])
            place = _skip(text, end)
            if text[place : place + 1] != ",":
                break
            place = _after(text, place, ",")
        place = _after(text, place, "}")
    if _skip(text, place) != len(text):
        raise ValueError("something follows the object")
    return members


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place


def _after(text: str, place: int, mark: str) -> int:
    if text[place : place + 1] != mark:
        raise ValueError(f"{mark!r} expected at {place}")
    return _skip(text, place + 1)
