"""Why the best host is the best, for people (spec scheduling, 10.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_TOP = 3
_NOTABLE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighedHost:
    """A host in the order of the answer.

    Attributes:
        input_weight: The weight it started with.
        contributions: (weigher, ``multiplier * tanh(activation)``), the same weighers for all.
    """

    name: str
    input_weight: float
    contributions: tuple[tuple[str, float], ...]

    @property
    def score(self) -> float:
        """Return input weight and contributions together."""
        return self.input_weight + sum(part for _, part in self.contributions)


def weighing_text(hosts: Sequence[WeighedHost], *, preferred: int = 0) -> str:
    """Return why the hosts are in this order; empty with one host or without weigher.

    Args:
        hosts: All hosts of the answer, best first.
        preferred: How many of the first come before all others whatever their score.
    """
    if len(hosts) < 2 or not hosts[0].contributions:  # noqa: PLR2004 - two make a pair
        return ""
    top = hosts[:_TOP]
    sentences = [f"Best hosts: {', '.join(host.name for host in top)}."]
    if preferred:
        names = ", ".join(host.name for host in hosts[:preferred])
        sentences.append(f"Before all others, whatever the weights: {names}.")
    tier = hosts[:preferred] or hosts
    counterfactual = _counterfactual(tier) if len(tier) > 1 else ""
    if counterfactual:
        sentences.append(counterfactual)
    pairs = list(pairwise(top))
    for place, (ahead, behind) in enumerate(pairs, start=1):
        if place != preferred:  # between the tiers no weight decides
            sentences += _pair(ahead, behind, has_counterfactual=bool(counterfactual))
    negligible = [
        name
        for index, (name, _) in enumerate(top[0].contributions)
        if all(abs(_difference(pair, index)) < _NOTABLE for pair in pairs)
    ]
    if negligible:
        sentences.append(f"Negligible here: {', '.join(negligible)}.")
    return "\n".join(sentences)


def _counterfactual(hosts: Sequence[WeighedHost]) -> str:
    first = hosts[0]
    scores = [host.score for host in hosts]
    for index, (name, part) in enumerate(first.contributions):
        rest = scores[0] - part
        others = [
            (score - host.contributions[index][1], host.name)
            for score, host in zip(scores[1:], hosts[1:], strict=True)
        ]
        best_score, best_name = max(others, key=lambda other: other[0])
        if best_score > rest + 1e-12:  # sums of floats differ in the last digits
            return f"Without {name}, {best_name} would be first."
    return ""


def _pair(ahead: WeighedHost, behind: WeighedHost, *, has_counterfactual: bool) -> list[str]:
    gap = ahead.score - behind.score
    parts = [
        (_difference((ahead, behind), index), name)
        for index, (name, _) in enumerate(ahead.contributions)
    ]
    favouring, favourite = max(parts, key=lambda part: part[0])
    opposing, opponent = min(parts, key=lambda part: part[0])
    bias = ahead.input_weight - behind.input_weight
    lead = f"{ahead.name} is ahead of {behind.name}"
    sentences = []
    if favouring > _NOTABLE:
        share = f", {favouring / gap:.0%} of the gap" if gap > _NOTABLE else ""
        sentences.append(f"{lead} because of {favourite} ({favouring:+.2f}{share}).")
    elif bias > _NOTABLE:
        sentences.append(f"{lead} because of the input weights ({bias:+.2f}).")
    elif not has_counterfactual:
        sentences.append(f"{lead} by a narrow gap ({gap:.4f}).")
    if opposing < -_NOTABLE:
        sentences.append(f"{opponent} opposed this order ({opposing:+.2f}).")
    return sentences


def _difference(pair: tuple[WeighedHost, WeighedHost], index: int) -> float:
    ahead, behind = pair
    return ahead.contributions[index][1] - behind.contributions[index][1]
