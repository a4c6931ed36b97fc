"""Runs build-engine as a process of its own for each line on stdin, which is a JSON list of its arguments and the file
for what it says. A line of stdout has the process's number when it begins, and the next one its exit code.

The builds are forked from a process that has imported what they need, which takes longer than a tiny build.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from tensorwright.builder import cli

for name in ("torch._export.non_strict_utils", "transformers", "tensorwright.builder.trace.export"):
    importlib.import_module(name)


def build(arguments: list[str], said: str) -> None:
    """Does what the command does, in this process, which it ends."""
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.argv[1:] = arguments
    cli.main()


def main() -> None:
    for line in sys.stdin:
        arguments, said = json.loads(line)
        child = os.fork()
        if child == 0:
            build(arguments, said)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
