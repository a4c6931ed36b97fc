"""The site has every page once, and its picture is of the figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from support.modules import load_module
from support.places import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
SITE = ROOT / "deploy" / "site"
MADE = {"index.md", "api.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE.md",
        "models-pico.md"}  # fmt: skip
"""The pages that pages.py adds."""


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from pages(part)


def test_the_site_has_every_page_once() -> None:
    listed = list(pages(yaml.safe_load((SITE / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert len(listed) == len(set(listed))
    written = {path.name for path in (ROOT / "docs").glob("*.md") if not path.name.endswith(".in.md")}
    assert set(listed) == written | MADE


def test_blocks_inside_of_lists_are_indented_as_the_site_wants_it() -> None:
    """Python-Markdown takes a table or a block of code for a part of a list with four spaces before it, and GitHub too;
    with fewer the site shows its characters."""
    for name in pages(yaml.safe_load((SITE / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]):
        page = ROOT / "docs" / name
        if page.exists():
            wrong = re.findall(r"(?m)^ {1,3}(?:```|\|).*", page.read_text(encoding="utf-8"))
            assert not wrong, f"{name}: {wrong[0]}"


def test_the_picture_is_of_the_measured_files() -> None:
    made = load_module(ROOT / "docs" / "make_goodput.py")
    assert made.PICTURE.read_text(encoding="utf-8") == made.draw(made.reports())
    text = made.PICTURE.read_text(encoding="utf-8")
    for report in made.reports().values():
        assert not report["forced"], "a run on a busy machine is not for quoting"
        assert not report["failed"]
        assert report["load"]["profile"] in text
