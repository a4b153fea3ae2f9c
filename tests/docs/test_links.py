from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.tour import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("changes/*.md")])
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, the way GitHub makes them."""
    titles = HEADING.findall(FENCE.sub("", page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        leads_out = not path.exists() or not path.is_relative_to(ROOT)
        if leads_out or (anchor and anchor not in anchors(path.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_every_page_is_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or not page.is_file():
            continue
        seen.add(page)
        for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            path = (page.parent / target.partition("#")[0]).resolve()
            if path.is_relative_to(ROOT) and path.suffix == ".md":
                waiting.append(path)
    assert {page for page in PAGES if page.parent.name != "changes"} <= seen


def test_a_broken_link_and_a_broken_anchor_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.docs.test_links.ROOT", tmp_path)
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# A title, with `code`\n")
    page.write_text(
        "[a](gone.md) [b](other.md#a-title-with-code) [c](other.md#no) [d](https://x)\n"
    )
    assert broken_links(page) == ["gone.md", "other.md#no"]
