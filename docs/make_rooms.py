"""Writes the list of files into each room's README: a row for each file, with the first sentence of the file itself.

python docs/make_rooms.py            writes the lists
python docs/make_rooms.py --check    exits with 1, and names the READMEs whose lists are old

A list stands between two markers. It has the files of the room's folder, and of those folders below it that have no
README of their own. A header and its source file share a row. Sentences are not written here: correct the docstring or
the first comment of the file.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- files -->", "<!-- end of files -->"
SUFFIXES = (".py", ".h", ".cc")
SENTENCE = re.compile(r".+?[.](?= [A-Z`(]|$)")


def readmes() -> list[Path]:
    """Every tracked README that has a list."""
    listed = subprocess.run(["git", "ls-files", "*README.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split()]
    return [path for path in paths if BEGIN in path.read_text(encoding="utf-8")]


def files_of(room: Path) -> list[Path]:
    """The source files that belong to the README of `room`, one for each pair of header and source."""
    found = []
    for path in sorted(room.rglob("*")):
        parents = path.relative_to(room).parents
        owner = next(room / parent for parent in parents if (room / parent / "README.md").exists())
        empty = path.is_file() and not path.stat().st_size
        if path.suffix in SUFFIXES and owner == room and not empty and "__pycache__" not in path.parts:
            found.append(path)
    return [path for path in found if path.suffix != ".cc" or path.with_suffix(".h") not in found]


def first_sentence(path: Path) -> str:
    """What a file says of itself: the first sentence of its docstring, or of the comment at its top."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        said = " ".join(re.findall(r"^// ?(.*)$", re.match(r"(?://.*\n)*", text)[0], re.MULTILINE))
    paragraph = " ".join(said.split("\n\n")[0].split())
    match = SENTENCE.match(paragraph)
    return (match[0] if match else paragraph).replace("|", "\\|")


def table(room: Path) -> str:
    rows = [f"| `{path.relative_to(room).as_posix()}` | {first_sentence(path)} |" for path in files_of(room)]
    return "\n".join(["| file | what it holds |", "|---|---|", *rows])


def written(readme: Path) -> str:
    """The README's text with a list that is true now."""
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{table(readme.parent)}\n{END}{after}"


def main() -> None:
    old = [path for path in readmes() if written(path) != path.read_text(encoding="utf-8")]
    if "--check" in sys.argv:
        sys.exit("\n".join(f"{path.relative_to(ROOT)}: run docs/make_rooms.py" for path in old) or 0)
    for path in old:
        path.write_text(written(path), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
