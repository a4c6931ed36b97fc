"""Makes the commands that install Tensorwright and its extras, for all errors and pages that name them.

Any room may import this file; it imports nothing.
"""

PUBLISHED = False
"""Whether a package index has Tensorwright. If True, every error names the index's package instead of a clone, and
tests/test_docs.py fails until the pages name the package too."""


BUILD_PACKAGES = ("torch", "transformers")
"""The packages of the extra "build" without which no engine can be built."""


def install_command(*extras: str, options: str = "") -> str:
    """Returns the shell command, such as "pip install -e '.[serve]'". options: further options of pip, "--upgrade"."""
    place = "tensorwright" if PUBLISHED else "."
    words = ["pip install", options, "" if PUBLISHED else "-e", f"'{place}[{','.join(extras)}]'"]
    return " ".join(word for word in words if word)


def install(*extras: str, options: str = "") -> str:
    """Returns the remedy for missing packages of these extras, as the end of a sentence: the command and its folder."""
    return install_command(*extras, options=options) + ("" if PUBLISHED else " in the clone of Tensorwright")
