"""Sizes and rates as people write them (spec hosts, A.4).

Two readings of a text. The lenient one gives the numbers of existing configurations, odd spellings
included. The strict one gives the same numbers and refuses every spelling that people misread.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal

LARGEST_LENIENT = 2**64 - 1
LARGEST_STRICT = 2**63 - 1
_WORDS = ("kilo", "mega", "giga", "tera", "peta", "exa")
_DECIMAL = {"g": 10**9, "m": 10**6, "k": 10**3}


def _binary_units() -> dict[str, int]:
    factors = {"": 1, "b": 1, "byte": 1}
    for power, word in enumerate(_WORDS, start=1):
        letter = word[0]
        spellings = (letter, f"{letter}b", f"{letter}ib", word, f"{word}byte", f"{word}bytes")
        factors |= dict.fromkeys(spellings, 1024**power)
    return factors


_BINARY = _binary_units()


class SizeError(ValueError):
    """A text is no size or rate; ``rule`` is what it breaks, ``example`` a right spelling."""

    def __init__(self, *, field: str, text: str, rule: str, example: str) -> None:
        super().__init__(f"{field}: {text!r}: {rule}, for example {example!r}")
        self.field, self.text, self.rule, self.example = field, text, rule, example


class _BrokenRuleError(ValueError):
    """Carries a rule to the edge of this module, where field and text are known."""


def parse_bandwidth(text: str, *, strict: bool = False, field: str = "bandwidth") -> int:
    """Return bytes per second of ``10Gbps`` (decimal bits) or ``125MiB/s`` (binary bytes).

    Raises:
        SizeError: The text is neither, or ``strict`` refuses its spelling.
    """
    try:
        if strict:
            _refuse_misread(text, is_rate=True)
        return _checked(_bandwidth(text), text, strict=strict)
    except _BrokenRuleError as error:
        raise SizeError(field=field, text=text, rule=str(error), example="10Gbps") from None


def parse_disk_io(text: str, *, strict: bool = False, field: str = "disk_io") -> int:
    """Return bytes per second; bits are unknown here: leniently ``1Gbps`` is 1 GiB/s.

    Raises:
        SizeError: As of ``parse_bandwidth``.
    """
    try:
        if strict:
            _refuse_bits(text)
            _refuse_misread(text, is_rate=True)
        return _checked(_byte_rate(text.strip().lower()), text, strict=strict)
    except _BrokenRuleError as error:
        raise SizeError(field=field, text=text, rule=str(error), example="500MiB/s") from None


def parse_bytes(text: str, *, strict: bool = False, field: str = "size") -> int:
    """Return bytes of ``512GiB``; ``GB`` and ``G`` are binary as well.

    Raises:
        SizeError: The text is no size, or ``strict`` refuses its spelling.
    """
    try:
        if strict:
            _refuse_misread(text, is_rate=False)
        return _checked(_bytes(text.strip().lower()), text, strict=strict)
    except _BrokenRuleError as error:
        raise SizeError(field=field, text=text, rule=str(error), example="512GiB") from None


def _bandwidth(text: str) -> int:
    lower = text.strip().lower()
    if not lower.endswith("bps"):
        return _byte_rate(lower)
    digits = lower.removesuffix("bps").strip()
    factor = 1
    if digits and digits[-1] in _DECIMAL:
        factor = _DECIMAL[digits[-1]]
        digits = digits[:-1].strip()
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", digits):
        raise _BrokenRuleError("a whole number before the unit is missing")
    bits = int(digits) * factor
    return bits // 8 if bits >= 0 else -(-bits // 8)


def _byte_rate(lower: str) -> int:
    return _bytes(lower.removesuffix("/s").removesuffix("ps"))


def _bytes(lower: str) -> int:
    if lower == "":
        return 0
    found = re.fullmatch(r"([0-9]{1,40})\s*(.*)", lower, re.DOTALL)
    if found is None:
        raise _BrokenRuleError("it does not start with a whole number")
    digits, unit = found.groups()
    if unit not in _BINARY:
        raise _BrokenRuleError("the unit is unknown")
    return int(digits) * _BINARY[unit]


def _checked(number: int, text: str, *, strict: bool) -> int:
    if number > (LARGEST_STRICT if strict else LARGEST_LENIENT):
        raise _BrokenRuleError("the number is out of range")
    if strict and number == 0 and re.search(r"[1-9]", text):
        raise _BrokenRuleError("it rounds to zero bytes")
    return number


def _refuse_misread(text: str, *, is_rate: bool) -> None:
    """Raise for spellings that read differently to a person and to the lenient grammar."""
    plain = text.strip()
    refused = (
        (r"(/s)?", "it is empty"),
        (r"-.*", "it is negative"),
        (r"\+.*", "it has a sign"),
        (r".*[^\x20-\x7e].*", "it has characters that belong to no size"),
        (r".*bps/s", "a rate per second per second: write Gbps or GB/s"),
        (r".*(?<!b)ps", "ps alone says neither bits nor bytes: write Gbps or GB/s"),
        (r".*\s[a-z]\s+bps", "a space inside of the unit"),
    )
    for pattern, rule in refused:
        if re.fullmatch(pattern, plain, re.IGNORECASE | re.DOTALL):
            raise _BrokenRuleError(rule)
    if re.fullmatch(r".*B[pP][sS]", plain):
        raise _BrokenRuleError("a capital B before ps: write bps for bits, B/s for bytes")
    if re.fullmatch(r"[0-9]+\s*([kmgtpeKMGTPE][iI]?)?b(/s)?", plain):
        instead = "Gbps for bits, GB/s for bytes" if is_rate else "GB"
        raise _BrokenRuleError(f"a small b as the unit: write {instead}")


def _refuse_bits(text: str) -> None:
    if re.search(r"bps\Z", text.strip(), re.IGNORECASE):
        raise _BrokenRuleError("bits are no unit of disk I/O: write GB/s")


def human_size(size_bytes: int) -> str:
    """Return ``8.0 GB`` as existing messages print it: a unit only when there is more than one.

    So exactly 1 GiB is ``1024.0 MB``. Pages and new messages use ``binary_size``.
    """
    for power, unit in ((6, "EB"), (5, "PB"), (4, "TB"), (3, "GB"), (2, "MB"), (1, "KB")):
        if size_bytes > 1024**power:
            return f"{_tenths(size_bytes, 1024**power)} {unit}"
    return f"{size_bytes} B"


def binary_size(size_bytes: int) -> str:
    """Return ``1.0 GiB``: the largest unit of which there is at least one."""
    for power, unit in ((6, "EiB"), (5, "PiB"), (4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            return f"{_tenths(size_bytes, 1024**power)} {unit}"
    return f"{size_bytes} B"


def _tenths(size_bytes: int, unit_bytes: int) -> Decimal:
    exact = Decimal(size_bytes) / Decimal(unit_bytes)
    return exact.quantize(Decimal("0.1"), rounding=ROUND_HALF_EVEN)
