"""Terms of commitments as Limes writes them (spec liquid, 15.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

UNITS: Final = ("year", "month", "day", "hour", "minute", "second")
PART = re.compile(r"([0-9]+)\s*(" + "|".join(UNITS) + r")s?", re.ASCII)
LARGEST: Final = 2**63 - 1
MONTHS_PER_YEAR: Final = 12
SECONDS_PER_HOUR: Final = 3600
SECONDS_PER_MINUTE: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """How long a commitment is for; years, months and days follow the calendar.

    Attributes:
        years: Calendar years.
        months: Calendar months, not carried into years.
        days: Calendar days, not carried into months.
        seconds: Hours, minutes and seconds together.
    """

    years: int = 0
    months: int = 0
    days: int = 0
    seconds: int = 0

    def __str__(self) -> str:
        """Return the term as Limes writes it: parts in falling size, without those that are 0."""
        hours, rest = divmod(self.seconds, SECONDS_PER_HOUR)
        minutes, seconds = divmod(rest, SECONDS_PER_MINUTE)
        amounts = (self.years, self.months, self.days, hours, minutes, seconds)
        return ", ".join(
            f"{amount} {unit}{'' if amount == 1 else 's'}"
            for amount, unit in zip(amounts, UNITS, strict=True)
            if amount
        )

    def after(self, moment: datetime) -> datetime:
        """Return the end of the term that begins at a moment.

        A month that lacks the day runs over into the next: a month after 31 January is early March,
        as Limes counts it.

        Raises:
            OverflowError: the end is beyond the year 9999.
        """
        month = moment.month - 1 + self.months
        years, months = divmod(month, MONTHS_PER_YEAR)
        try:
            first = moment.replace(year=moment.year + self.years + years, month=months + 1, day=1)
        except ValueError as error:
            raise OverflowError(str(error)) from error
        return first + timedelta(days=moment.day - 1 + self.days, seconds=self.seconds)


def parse_term(text: str) -> Term:
    """Return the term that a text says: parts like ``3 years``, separated by commas.

    Plural and the space are optional, white space around parts and empty parts do not matter, parts
    of one unit add up.

    Raises:
        ValueError: a part is not understood, or there is nothing in it; the message says which.

    Source: spec liquid, 15.2 (duration grammar).
    """
    sums = dict.fromkeys(UNITS, 0)
    for part in text.split(","):
        word = part.strip()
        if not word:
            continue
        match = PART.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r} is no number of {', '.join(UNITS[:-1])} or {UNITS[-1]}s")
        sums[match[2]] += int(match[1])
    if not any(sums.values()):
        raise ValueError("a duration must be longer than nothing")
    term = Term(
        years=sums["year"],
        months=sums["month"],
        days=sums["day"],
        seconds=sums["hour"] * SECONDS_PER_HOUR
        + sums["minute"] * SECONDS_PER_MINUTE
        + sums["second"],
    )
    if max(term.years, term.months, term.days, term.seconds) > LARGEST:
        raise ValueError("a duration must not be longer than 64 bits can say")
    return term
