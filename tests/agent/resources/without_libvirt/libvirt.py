"""What the agent uses of libvirt, with VMs in this process, for machines without libvirt."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

VIR_DOMAIN_EVENT_ID_LIFECYCLE = 0
VIR_ERR_NO_DOMAIN = 42


class libvirtError(Exception):  # noqa: N801 - the library's name
    def get_error_code(self) -> int:
        return VIR_ERR_NO_DOMAIN


_domains: dict[str, Domain] = {}
_listeners: list[Callable[..., object]] = []
_happened = threading.Event()


class Domain:
    def __init__(self, name: str, uuid: str) -> None:
        self._name, self._uuid = name, uuid
        self._state = 5

    def create(self) -> None:
        self._state = 1
        _happened.set()

    def info(self) -> tuple[int, int, int, int, int]:
        return self._state, 1048576, 1048576, 1, 0

    def UUIDString(self) -> str:  # noqa: N802 - the library's name
        return self._uuid

    def name(self) -> str:
        return self._name

    def XMLDesc(self, _flags: int) -> str:  # noqa: N802 - the library's name
        return "<domain/>"

    def undefine(self) -> None:
        del _domains[self._name]
        _happened.set()

    def destroy(self) -> None:
        self._state = 5
        _happened.set()


class Connection:
    def isAlive(self) -> bool:  # noqa: N802 - the library's name
        return True

    def listAllDomains(self) -> list[Domain]:  # noqa: N802 - the library's name
        return list(_domains.values())

    def lookupByName(self, name: str) -> Domain:  # noqa: N802 - the library's name
        return _domains[name]

    def defineXML(self, xml: str) -> Domain:  # noqa: N802 - the library's name
        name, uuid = (re.findall(f"<{tag}>(.*)</{tag}>", xml)[0] for tag in ("name", "uuid"))
        _domains[name] = Domain(name, uuid)
        _happened.set()
        return _domains[name]

    def domainEventRegisterAny(  # noqa: N802 - the library's name
        self, _domain: object, _kind: int, listener: Callable[..., object], _opaque: object
    ) -> int:
        _listeners.append(listener)
        return 0


def open(_uri: str) -> Connection:  # noqa: A001 - the library's name
    return Connection()


def openReadOnly(_uri: str) -> Connection:  # noqa: N802 - the library's name
    return Connection()


def registerErrorHandler(*_: Any) -> None:  # noqa: N802 - the library's name
    pass


def virEventRegisterDefaultImpl() -> None:  # noqa: N802 - the library's name
    pass


def virEventAddTimeout(*_: Any) -> int:  # noqa: N802 - the library's name
    return 0


def virEventRemoveTimeout(_: int) -> None:  # noqa: N802 - the library's name
    pass


def virEventRunDefaultImpl() -> None:  # noqa: N802 - the library's name
    if _happened.wait(1):
        _happened.clear()
        for listener in _listeners:
            listener()


Connection().defineXML(
    "<name>test</name><uuid>6695eb01-f6a4-8304-79aa-97f2502e193f</uuid>"
).create()
