"""The oldest versions that pyproject.toml allows of what an engine runs and is served with, for `make test-lowest`.

python tests/support/lowest_versions.py                             "name==version" of each
python tests/support/lowest_versions.py --beside constraints.txt    those, and the pinned versions of all else
python tests/support/lowest_versions.py --of-build torch            "torch==version.*" of the build extra, which
                                                                    `make test-oldest-build` tries apart
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
EXTRAS = ("guided", "serve")
FOLLOW = ("starlette", "huggingface-hub")
"""What comes along with one of those, in a version that it chooses."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)(?:,<[0-9.]+)?")


def lowest_versions() -> dict[str, str]:
    """Package -> oldest version. ValueError for a requirement without a lower bound."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    found = {}
    for requirement in (*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])):
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"pyproject.toml: {requirement!r} must be 'name>=version', with or without ',<version'")
        found[match[1]] = match[2]
    return found


def lowest_of_build(name: str) -> str:
    """The oldest minor release of a package of the build extra, as a requirement. ValueError if it has no bound."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    matches = [_REQUIREMENT.fullmatch(line) for line in project["optional-dependencies"]["build"]]
    found = [match[2] for match in matches if match and match[1] == name]
    if len(found) != 1:
        raise ValueError(f"pyproject.toml: the build extra must have one '{name}>=version'")
    return f"{name}=={found[0]}.*"


def constraints(pinned: str, lowest: dict[str, str]) -> list[str]:
    """Lines of a constraints file: the lowest versions, and of `pinned` what they neither name nor bring along."""
    follow = {*map(_plain, lowest), *FOLLOW}
    kept = [line for line in pinned.splitlines() if "==" in line and _plain(line.split("==")[0]) not in follow]
    return [*(f"{name}=={version}" for name, version in lowest.items()), *kept]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    versions = lowest_versions()
    if sys.argv[1:2] == ["--of-build"]:
        print(lowest_of_build(sys.argv[2]))
    elif sys.argv[1:2] == ["--beside"]:
        print("\n".join(constraints(Path(sys.argv[2]).read_text(encoding="utf-8"), versions)))
    else:
        print("\n".join(f"{name}=={version}" for name, version in versions.items()))
