"""What surrounds a pipeline run for Nova: which pipeline, which hosts, in which order.

Source: spec scheduling, 2.5 and 2.6.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from hashlib import blake2b

from scheduling.request import HYPERVISOR_TYPE_KEY

HANA_TRAIT_KEY = "trait:CUSTOM_HANA_EXCLUSIVE_HOST"
_FAMILY_OF_TYPE = {"qemu": "kvm", "ch": "kvm", "vmware vcenter server": "vmware"}
_PIPELINE_SUFFIX = {False: "general-purpose-load-balancing", True: "hana-bin-packing"}


class PipelineNotInferredError(ValueError):
    """The flavor does not say which pipeline it wants.

    Attributes:
        subject: ``hypervisor type`` or ``flavor type``.
        problem: What the flavor says instead.
    """

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(f"failed to determine {subject}: {problem}")
        self.subject = subject
        self.problem = problem


def inferred_pipeline(extra_specs: Mapping[str, str] | None) -> str:
    """Return the name of the pipeline for a flavor.

    Args:
        extra_specs: Extra specs of the flavor; None means that it has none.

    Raises:
        PipelineNotInferredError: hypervisor type or flavor type cannot be told.

    Source: spec scheduling, 2.5.
    """
    specs = extra_specs or {}
    family = _family(specs)
    return f"{family}-{_PIPELINE_SUFFIX[_is_hana(specs)]}"


def kvm_pipeline(extra_specs: Mapping[str, str]) -> str:
    """Return the name of the pipeline for a VM on KVM: HANA's packs, the other spreads.

    Source: spec failover, 11.2 "HANA rule".
    """
    return f"kvm-{_PIPELINE_SUFFIX[extra_specs.get(HANA_TRAIT_KEY, '').lower() == 'required']}"


def limited_to(hosts: Sequence[str], allowed: Container[str]) -> tuple[str, ...]:
    """Return the hosts that are allowed, in their order, duplicates included.

    Args:
        hosts: Hosts of an answer.
        allowed: A set or mapping.

    Source: spec scheduling, 2.6.
    """
    return tuple(host for host in hosts if host in allowed)


def planned_first(hosts: Sequence[str], planned: str) -> tuple[str, ...]:
    """Return the hosts with a planned one first if it is among them, the others in their order.

    Source: spec failover, 17.2 (evacuation planner).
    """
    if planned not in hosts:
        return tuple(hosts)
    return (planned, *(host for host in hosts if host != planned))


def shuffled_top(
    hosts: Sequence[str], count: int, *, seed: str, preferred: int = 0
) -> tuple[str, ...]:
    """Return the hosts with the first ``count`` in an order that the seed alone decides.

    The same seed gives the same order, different seeds spread evenly.

    Args:
        hosts: Best first.
        count: How many of the best change places; fewer than two change nothing.
        seed: Key of the request.
        preferred: How many of the best stay before the others, in whatever order.

    Source: spec scheduling, 2.6 (product: seeded by the request) and 15.7.
    """
    top = min(count, len(hosts))
    if top < 2:  # noqa: PLR2004 - one host has no other order
        return tuple(hosts)
    order = sorted(
        range(top), key=lambda place: (place >= preferred, _draw(seed, hosts[place]), place)
    )
    return (*(hosts[place] for place in order), *hosts[top:])


def _draw(seed: str, host: str) -> bytes:
    return blake2b(f"{seed}\n{host}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _family(extra_specs: Mapping[str, str]) -> str:
    stated = extra_specs.get(HYPERVISOR_TYPE_KEY)
    if stated is None:
        raise PipelineNotInferredError("hypervisor type", f"flavor has no {HYPERVISOR_TYPE_KEY}")
    family = _FAMILY_OF_TYPE.get(stated.lower())
    if family is None:
        raise PipelineNotInferredError("hypervisor type", f"{stated!r} is not supported")
    return family


def _is_hana(extra_specs: Mapping[str, str]) -> bool:
    stated = extra_specs.get(HANA_TRAIT_KEY)
    if stated is None or stated.lower() == "forbidden":
        return False
    if stated.lower() == "required":
        return True
    raise PipelineNotInferredError(
        "flavor type", f"{HANA_TRAIT_KEY} is {stated!r}, not required or forbidden"
    )
