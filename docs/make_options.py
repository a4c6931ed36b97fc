"""Writes the tables of options into the pages of docs/: a row for each option that is declared in tensorwright/options.

python docs/make_options.py            writes the tables
python docs/make_options.py --check    exits with 1, and names the pages whose tables are old

A table stands between two markers. The first names a door (tensorwright/options/declare.py), also a record if the table
has only that record's options, and also a target if it has only the options that not all targets have. Sentences and
defaults are not written here: correct the declaration.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tensorwright.options.bench import LoadFields, LoadTestFields
from tensorwright.options.build import BuildFields
from tensorwright.options.declare import Door, Option, options_at
from tensorwright.options.engine import EngineFields
from tensorwright.options.prefix_cache import PrefixCacheFields
from tensorwright.options.ray import RayFields
from tensorwright.options.server import NetworkFields, ServerFields
from tensorwright.options.transfer import RouterFields, TransferFields
from tensorwright.options.triton import ModelFields, RepositoryFields

DOCS = Path(__file__).resolve().parent
GROUPS = (
    ModelFields, RepositoryFields, RouterFields, NetworkFields, ServerFields, TransferFields, RayFields, LoadFields,
    LoadTestFields, PrefixCacheFields, EngineFields, BuildFields,
)  # fmt: skip
"""The groups of options, in the order in which a table lists them."""
TABLE = re.compile(
    r"<!-- options of (?P<door>[\w .-]+?)(?: in (?P<record>\w+))?(?: for target (?P<target>\S+))? -->\n"
    r".*?<!-- end of options -->",
    re.DOTALL,
)
DEFAULT = re.compile(r" ?\[default: (?P<words>.*)\]$")
"""The end of a help text, where the default is no value of the option's own."""


def row(option: Option, door: Door) -> str:
    """Returns the row of one option: its name at the door, its default, what it is and which values it takes."""
    shown = option.shown(door)
    words = DEFAULT.search(shown.help)
    default = words["words"] if words else spelled(shown.default, door)
    meaning = DEFAULT.sub("", shown.help).removeprefix("TensorRT: ")
    meaning = meaning[0].upper() + meaning[1:]
    if shown.choices:
        meaning += " One of " + ", ".join(f"`{choice}`" for choice in shown.choices) + "."
    name = option.name if door is Door.TRITON else shown.flag
    return f"| `{name}` | {default} | {meaning} |".replace("|  |", "| |")


def spelled(default: object, door: Door) -> str:
    """Returns a default as a user writes it; "" for none. config.pbtxt has true and false."""
    if default in (None, "", ()):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) and door is Door.TRITON else default}`"


def table(door: Door, record: str | None, target: str | None) -> str:
    """Returns the table of the door's options. record: of those of the record of this name. target: of those that only
    some targets have, this one among them."""
    groups = [group for group in GROUPS if record in (None, group.__name__)]
    options = {option.name: option for option in options_at(door, *groups)}  # two groups may share an option
    rows = [row(option, door) for option in options.values() if target is None or target in option.targets]
    what = "parameter" if door is Door.TRITON else "option"
    return "\n".join([f"| {what} | default | meaning |", "|---|---|---|", *rows])


def written(text: str) -> str:
    """Returns a page's text with tables that are true now."""

    def new(old: re.Match[str]) -> str:
        rows = table(Door(old["door"]), old["record"], old["target"])
        return f"{old[0].splitlines()[0]}\n{rows}\n<!-- end of options -->"

    return TABLE.sub(new, text)


def main() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}
    old = [page for page, text in pages.items() if written(text) != text]
    if "--check" in sys.argv:
        sys.exit("\n".join(f"docs/{page.name}: run docs/make_options.py" for page in old) or 0)
    for page in old:
        page.write_text(written(pages[page]), encoding="utf-8")
        print(f"docs/{page.name}")


if __name__ == "__main__":
    main()
