"""Reads published traces of arrivals: CSV files with a row for each request.

The columns are those of the Azure LLM inference traces (Patel et al. 2024, Splitwise;
github.com/Azure/AzurePublicDataset, CC-BY): TIMESTAMP, ContextTokens and GeneratedTokens. Others may stand beside them.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import numpy as np

from tensorwright.errors import InvalidOptionError, reason

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MAX_TOKENS = 1 << 24


@dataclass(frozen=True)
class ArrivalFile:
    """The requests of a trace, in the order of their arrival. seconds: float64, from the first one on. prompts,
    outputs: int32, tokens. left_out: rows with a prompt or an answer of no tokens."""

    seconds: np.ndarray
    prompts: np.ndarray
    outputs: np.ndarray
    left_out: int

    def __len__(self) -> int:
        return len(self.seconds)


def read_arrivals(path: str | Path, most: int) -> ArrivalFile:
    """Reads at most `most` rows. Raises InvalidOptionError for a file that is no such trace, with the row at fault."""
    rows: list[tuple[float, int, int]] = []
    left_out = 0
    try:
        with Path(path).expanduser().open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise InvalidOptionError(
                    f"{path}: a trace of arrivals must have the columns {', '.join(COLUMNS)}; {', '.join(missing)} "
                    "are missing"
                )
            for row in islice(reader, most):
                time, prompt, output = _read_row(row, f"{path}: line {reader.line_num}")
                if prompt == 0 or output == 0:
                    left_out += 1
                else:
                    rows.append((time, prompt, output))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidOptionError(f"{path}: cannot be read as a trace of arrivals ({reason(error)})") from error
    if not rows:
        raise InvalidOptionError(f"{path}: a trace of arrivals must have a request with a prompt and an answer")
    rows.sort(key=lambda row: row[0])
    seconds = np.array([row[0] for row in rows])
    prompts, outputs = (np.array([row[i] for row in rows], np.int32) for i in (1, 2))
    return ArrivalFile(seconds - seconds[0], prompts, outputs, left_out)


def _read_row(row: dict[str, str | None], where: str) -> tuple[float, int, int]:
    try:
        time = datetime.fromisoformat(row["TIMESTAMP"] or "").timestamp()
    except ValueError as error:
        raise InvalidOptionError(
            f"{where}: TIMESTAMP must be a time such as 2023-11-16 18:17:03.97, got {row['TIMESTAMP']!r}"
        ) from error
    tokens = []
    for column in COLUMNS[1:]:
        text = row[column] or ""
        if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > MAX_TOKENS:
            raise InvalidOptionError(
                f"{where}: {column} must be a whole number from 0 to {MAX_TOKENS}, got {row[column]!r}"
            )
        tokens.append(int(text))
    return time, tokens[0], tokens[1]
