"""Base58 with Bitcoin's alphabet."""

from __future__ import annotations

_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_LONGEST = 1024


def encode(octets: bytes) -> str:
    """Return the text of some bytes; each leading zero byte is a ``1``."""
    number, letters = int.from_bytes(octets, "big"), []
    while number:
        number, rest = divmod(number, 58)
        letters.append(_ALPHABET[rest])
    zeros = len(octets) - len(octets.lstrip(b"\0"))
    return "1" * zeros + "".join(reversed(letters))


def decode(text: str) -> bytes:
    """Return the bytes of a text.

    Raises:
        ValueError: A letter is not of the alphabet, or the text is far too long.
    """
    if len(text) > _LONGEST:
        raise ValueError("the text is too long for base58")
    number = 0
    for letter in text:
        if letter not in _VALUES:
            raise ValueError(f"{letter!r} is no letter of base58")
        number = number * 58 + _VALUES[letter]
    zeros = len(text) - len(text.lstrip("1"))
    return b"\0" * zeros + number.to_bytes((number.bit_length() + 7) // 8, "big")
