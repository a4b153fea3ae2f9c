from __future__ import annotations

import sys
from io import StringIO

import pytest

from config.launcher.terminal import step


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("out", "meanwhile"), [(Terminal(), "migrations ...\r"), (StringIO(), "")])
def test_a_terminal_shows_what_is_under_way(
    out: StringIO, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", out)

    with step("migrations"):
        assert out.getvalue() == meanwhile

    assert out.getvalue().startswith(f"{meanwhile}migrations......")
    assert out.getvalue().endswith(" s\n")
