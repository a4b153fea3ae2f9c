"""Pictures of a scheduling decision as SVG: what each filter left, what each weigher gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

FUNNEL_WIDTH = 1000
FUNNEL_HEIGHT = 26
SCORE_WIDTH = 400
SCORE_HEIGHT = 26
LEAST_WIDTH = 2
LETTER_WIDTH = 14
WEIGHER_TONES = 6
_SCALE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one weigher, or the weight at the start, adds to a score.

    Attributes:
        letter: Its letter in the picture and its key.
        name: Its name.
        share: What it adds, negative where it takes.
        tone: Number of its colour and pattern.
    """

    letter: str
    name: str
    share: float
    tone: int

    @property
    def words(self) -> str:
        """The part for people."""
        return f"{self.name}: {self.share:+.3f}"


def funnel_bar(*, before: int, remaining: int, started: int, title: str) -> SafeString:
    """Draw one step of a funnel, centred: hosts that stay, and on both sides those that go.

    Args:
        before: Hosts before the step.
        remaining: Hosts after it.
        started: Hosts before the first step: the whole width.
        title: The step in words, read aloud.
    """
    whole = max(1, started)
    outer, inner = _centred(before, whole), _centred(remaining, whole)
    gone = _rectangle("hr-funnel-gone", outer, FUNNEL_HEIGHT) if before > remaining else ""
    left = _rectangle("hr-funnel-left", inner, FUNNEL_HEIGHT) if remaining else ""
    return format_html(
        '<svg class="hr-funnel" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"'
        ' aria-label="{}"><title>{}</title>{}{}</svg>',
        FUNNEL_WIDTH,
        FUNNEL_HEIGHT,
        title,
        title,
        gone,
        left,
    )


def score_bar(parts: Sequence[Part], *, reach: tuple[float, float], title: str) -> SafeString:
    """Draw a score as its parts: what adds to the right of zero, what takes to the left.

    Args:
        parts: Parts in order.
        reach: Lowest and highest sum of any bar of the picture, so that bars compare.
        title: The score in words, read aloud.
    """
    low, high = reach
    span = max(high - low, 1 / _SCALE)
    zero = _place(0.0, low, span)
    pieces: list[SafeString] = []
    for sign in (1, -1):
        edge = 0.0
        for part in parts:
            if part.share * sign <= 0:
                continue
            ends = sorted((_place(edge, low, span), _place(edge + part.share, low, span)))
            edge += part.share
            pieces.append(_piece(part, ends[0], max(LEAST_WIDTH, ends[1] - ends[0])))
    spoken = "; ".join([title, *(part.words for part in parts)])
    return format_html(
        '<svg class="hr-score" viewBox="0 0 {} {}" role="img"'
        ' aria-label="{}"><title>{}</title>{}'
        '<line class="hr-score-zero" x1="{}" x2="{}" y1="0" y2="{}"/></svg>',
        SCORE_WIDTH,
        SCORE_HEIGHT,
        spoken,
        spoken,
        format_html_join("", "{}", ((piece,) for piece in pieces)),
        zero,
        zero,
        SCORE_HEIGHT,
    )


def score_reach(scores: Sequence[Mapping[str, float]]) -> tuple[float, float]:
    """Return the lowest and the highest sum that bars of these parts reach."""
    lows = [sum(share for share in parts.values() if share < 0) for parts in scores]
    highs = [sum(share for share in parts.values() if share > 0) for parts in scores]
    return min([0.0, *lows]), max([0.0, *highs])


def _centred(count: int, whole: int) -> tuple[int, int]:
    width = max(LEAST_WIDTH, count * FUNNEL_WIDTH // whole) if count else 0
    return (FUNNEL_WIDTH - width) // 2, width


def _rectangle(css_class: str, extent: tuple[int, int], height: int) -> SafeString:
    start, width = extent
    return format_html(
        '<rect class="{}" x="{}" y="0" width="{}" height="{}"/>', css_class, start, width, height
    )


def _place(position: float, low: float, span: float) -> int:
    return int((position - low) / span * SCORE_WIDTH)


def _piece(part: Part, start: int, width: int) -> SafeString:
    rectangle = format_html(
        '<rect class="hr-weigher hr-weigher-{}" x="{}" y="3" width="{}" height="{}">'
        "<title>{}</title></rect>",
        part.tone,
        start,
        width,
        SCORE_HEIGHT - 6,
        part.words,
    )
    if width < LETTER_WIDTH:
        return rectangle
    return format_html(
        '{}<text class="hr-weigher-letter" x="{}" y="18" text-anchor="middle">{}</text>',
        rectangle,
        start + width // 2,
        part.letter,
    )
