from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from config.launcher.places import this_checkout

PROGRAM = """
import logging, sys
from pathlib import Path
import structlog
from config.logging import logging_tree
logging_tree(json_lines=True, level="INFO", file=Path(sys.argv[1]) if sys.argv[1:] else None)
structlog.get_logger("ours").info("region_loaded", hosts=3)
logging.getLogger("theirs").warning("slow")
"""


def said(*arguments: str) -> str:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    root = this_checkout().root
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == ""
    return done.stderr


def test_without_a_file_lines_go_to_standard_error() -> None:
    events = [json.loads(line)["event"] for line in said().splitlines()]
    assert events == ["region_loaded", "slow"]


def test_a_file_gets_the_lines_instead_added_to_what_it_holds(tmp_path: Path) -> None:
    log = tmp_path / "some.log"
    log.write_text("before\n")
    assert said(str(log)) == ""
    first, *lines = log.read_text().splitlines()
    assert first == "before"
    assert [json.loads(line)["event"] for line in lines] == ["region_loaded", "slow"]
