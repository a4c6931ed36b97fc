"""How Tensorwright and its extras are installed: the one place for what errors and pages say of it.

A leaf like errors.py: any room may import it, it imports nothing.
"""

PUBLISHED = False
"""Whether a package index has Tensorwright. With True every error names the index's package instead of a clone, and
tests/test_docs.py fails until the pages do."""


def install_command(*extras: str, options: str = "") -> str:
    """What a shell takes: "pip install -e '.[serve]'". options: more of pip's, such as "--upgrade"."""
    place = "tensorwright" if PUBLISHED else "."
    words = ["pip install", options, "" if PUBLISHED else "-e", f"'{place}[{','.join(extras)}]'"]
    return " ".join(word for word in words if word)


def install(*extras: str, options: str = "") -> str:
    """The remedy for packages that extras bring, as the end of a sentence: the command, and where to run it."""
    return install_command(*extras, options=options) + ("" if PUBLISHED else " in the clone of Tensorwright")
