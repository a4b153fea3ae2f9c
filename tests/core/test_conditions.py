"""Conditions of CHECK constraints that are short in the database."""

from __future__ import annotations

import pytest

from core.conditions import OneOf


@pytest.mark.parametrize("word", ["it's", "a,b", "{}", "Large", "1"])
def test_only_words_can_be_written_into_a_constraint(word: str) -> None:
    with pytest.raises(ValueError, match="no words"):
        OneOf("kind", ["fine", word])
