"""Reading everything that a Placement service holds through its API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from journal.errors import HeadroomError
from placement.domain.capacity import InventoryAmounts
from placement.domain.transfer import ConsumerRecord, Contents, ProviderRecord

NEWEST_USED: Final = 38
OLDEST_USABLE: Final = 28
READERS: Final = 8
OK: Final = 200
UNKNOWN_TYPE: Final = "unknown"
_FIELDS: Final = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")

Json = Any  # decoded JSON
StepSeen = Callable[[str, int | None, int], None]
"""Called with a step's title, its size (None when unknown) and how much more is done."""


class Adapter(Protocol):
    """What is needed of a keystoneauth adapter or of an openstacksdk proxy."""

    def get(self, url: str, **options: Any) -> Any:  # Any: a requests.Response
        """Send a GET request."""


class PeerError(HeadroomError):
    """The other Placement did not answer as one."""

    code = "placement_peer_failed"


def read_api(adapter: Adapter, seen: StepSeen) -> Contents:
    """Return what a service holds; providers and consumers are read by several threads.

    Args:
        adapter: Sends authenticated requests to the service.
        seen: Told of progress.

    Raises:
        PeerError: an answer was not what Placement answers, or the service is too old.
    """
    version = _usable_version(adapter)

    def get(path: str) -> Json:
        return _get(adapter, path, version)

    classes = [row["name"] for row in get("/resource_classes")["resource_classes"]]
    traits = get("/traits")["traits"]
    listed = get("/resource_providers")["resource_providers"]
    with ThreadPoolExecutor(READERS) as pool:
        providers: dict[str, ProviderRecord] = {}
        consumers: set[str] = set()
        seen("providers", len(listed), 0)
        for record, held in pool.map(lambda row: provider_of(get, row), listed):
            providers[record.uuid] = record
            consumers |= held.keys()
            seen("providers", len(listed), 1)
        seen("consumers", len(consumers), 0)
        found: dict[str, ConsumerRecord] = {}
        for consumer in pool.map(lambda uuid: consumer_of(get, uuid), sorted(consumers)):
            if consumer is not None:
                found[consumer.uuid] = consumer
            seen("consumers", len(consumers), 1)
    return Contents(
        classes=frozenset(classes), traits=frozenset(traits), providers=providers, consumers=found
    )


def _usable_version(adapter: Adapter) -> str:
    document = _get(adapter, "/", None)
    try:
        major, minor = map(int, document["versions"][0]["max_version"].split("."))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PeerError("the address does not answer like a Placement service") from error
    if (major, minor) < (1, OLDEST_USABLE):
        raise PeerError(
            f"the service knows versions up to {major}.{minor}, 1.{OLDEST_USABLE} is needed"
        )
    return f"1.{min(minor, NEWEST_USED)}"


def _get(adapter: Adapter, path: str, version: str | None) -> Json:
    headers = {"OpenStack-API-Version": f"placement {version}"} if version else {}
    headers["Accept"] = "application/json"
    try:
        response = adapter.get(path, headers=headers, raise_exc=False)
        answer = response.json() if response.status_code == OK else None
    except Exception as error:  # whatever the HTTP stack raises is the peer's failure here
        raise PeerError(f"GET {path} failed: {error}") from error
    if answer is None:
        raise PeerError(f"GET {path} answered {response.status_code}: {response.text[:200]}")
    return answer


def provider_of(get: Callable[[str], Json], row: Json) -> tuple[ProviderRecord, dict[str, Json]]:
    """Return a provider and what consumers hold of it, as listed.

    Args:
        get: Reads a path.
        row: The provider as lists have it.
    """
    base = f"/resource_providers/{row['uuid']}"
    inventories = get(f"{base}/inventories")
    record = ProviderRecord(
        uuid=row["uuid"],
        name=row["name"],
        parent=row.get("parent_provider_uuid") or "",
        generation=inventories["resource_provider_generation"],
        inventories={
            name: InventoryAmounts(**{field: fields[field] for field in _FIELDS})
            for name, fields in inventories["inventories"].items()
        },
        traits=frozenset(get(f"{base}/traits")["traits"]),
        aggregates=frozenset(_canonical(get(f"{base}/aggregates")["aggregates"])),
    )
    return record, dict(get(f"{base}/allocations")["allocations"])


def _canonical(uuids: Iterable[str]) -> list[str]:
    """Spell aggregates as we store them; the reference keeps them as given."""
    plain = [uuid.replace("-", "").lower() for uuid in uuids]
    return [f"{u[:8]}-{u[8:12]}-{u[12:16]}-{u[16:20]}-{u[20:]}" for u in plain]


def consumer_of(get: Callable[[str], Json], uuid: str) -> ConsumerRecord | None:
    """Return a consumer, None when it holds nothing."""
    answer = get(f"/allocations/{uuid}")
    if not answer["allocations"]:
        return None
    kind = answer.get("consumer_type", UNKNOWN_TYPE)
    return ConsumerRecord(
        uuid=uuid,
        project=answer["project_id"],
        user=answer["user_id"],
        type_name="" if kind == UNKNOWN_TYPE else kind,
        generation=answer["consumer_generation"],
        allocations={
            provider: dict(held["resources"]) for provider, held in answer["allocations"].items()
        },
    )
