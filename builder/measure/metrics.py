"""Compares an engine's logits with the reference's: the numbers of the accuracy record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Comparison:
    """Gathers positions one block at a time. Logits are [positions, vocab] float32; sums are float64."""

    largest_error: float = 0.0
    largest_logit: float = 0.0
    agreements: int = 0
    positions: int = 0
    windows: int = 0
    bytes: int = 0
    characters: int = 0
    divergences: list[float] = field(default_factory=list)
    reference_losses: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def begin_window(self, scored_bytes: int, scored_characters: int) -> None:
        """Counts a sequence. The arguments are the size of the text of those tokens that are predicted."""
        self.windows += 1
        self.bytes += scored_bytes
        self.characters += scored_characters

    def add(self, reference: np.ndarray, logits: np.ndarray, targets: Sequence[int | None]) -> None:
        """Adds some positions in order, and the token after each position, or None where no token is predicted."""
        if reference.shape != logits.shape:
            raise ValueError(f"logits must be {reference.shape} as the reference's, are {logits.shape}")
        for wanted, got, target in zip(reference, logits, targets, strict=True):
            self._add_row(wanted.astype(np.float64), got.astype(np.float64), target)

    def _add_row(self, wanted: np.ndarray, got: np.ndarray, target: int | None) -> None:
        self.positions += 1
        self.largest_error = _largest(self.largest_error, float(np.abs(wanted - got).max()))
        self.largest_logit = _largest(self.largest_logit, float(np.abs(wanted).max()))
        self.agreements += int(wanted.argmax() == got.argmax())
        log_p, log_q = log_softmax(wanted), log_softmax(got)
        self.divergences.append(float(np.sum(np.exp(log_p) * (log_p - log_q))))
        if target is not None:
            self.reference_losses.append(-float(log_p[target]))
            self.losses.append(-float(log_q[target]))

    def record(self) -> dict[str, Any]:
        """Returns the numbers to six digits. kl_divergence is KL(reference || engine) in nats, mean over positions.

        Without a text there are no bits per byte and per character.
        """
        numbers = {
            "windows": self.windows,
            "tokens": self.positions,
            "largest_logit_error": rounded(self.largest_error),
            "largest_reference_logit": rounded(self.largest_logit),
            "kl_divergence": rounded(_mean(self.divergences)),
            "top1_agreement": rounded(self.agreements / self.positions if self.positions else math.nan),
            "perplexity_reference": rounded(_perplexity(self.reference_losses)),
            "perplexity_engine": rounded(_perplexity(self.losses)),
        }
        if self.characters == 0:
            return numbers
        numbers |= {"bytes": self.bytes, "characters": self.characters}
        for unit, count in (("byte", self.bytes), ("character", self.characters)):
            for side, losses in (("reference", self.reference_losses), ("engine", self.losses)):
                numbers[f"bits_per_{unit}_{side}"] = rounded(sum(losses) / math.log(2) / count)
        return numbers


@dataclass
class HiddenComparison:
    """Gathers positions one block at a time, as Comparison does. Rows are hidden states, [positions, hidden] float32.

    The cosine of a pair is taken in float64; that of a row of zeros with any other is 0.
    """

    largest_error: float = 0.0
    largest_value: float = 0.0
    least_cosine: float = 1.0
    positions: int = 0
    windows: int = 0

    def begin_window(self, scored_bytes: int, scored_characters: int) -> None:
        """Counts a sequence. No text is predicted, so that its size does not count."""
        self.windows += 1

    def add(self, reference: np.ndarray, rows: np.ndarray, targets: Sequence[int | None]) -> None:
        """Adds some positions in order."""
        if reference.shape != rows.shape:
            raise ValueError(f"hidden states must be {reference.shape} as the reference's, are {rows.shape}")
        wanted, got = reference.astype(np.float64), rows.astype(np.float64)
        self.positions += len(wanted)
        self.largest_error = _largest(self.largest_error, float(np.abs(wanted - got).max()))
        self.largest_value = _largest(self.largest_value, float(np.abs(wanted).max()))
        lengths = np.linalg.norm(wanted, axis=1) * np.linalg.norm(got, axis=1)
        cosines = (wanted * got).sum(axis=1) / np.where(lengths == 0, 1.0, lengths)
        self.least_cosine = -_largest(-self.least_cosine, float((-cosines).max()))

    def record(self) -> dict[str, Any]:
        """Returns the numbers to six digits."""
        return {
            "windows": self.windows,
            "tokens": self.positions,
            "largest_hidden_state_error": rounded(self.largest_error),
            "largest_reference_hidden_state": rounded(self.largest_value),
            "least_cosine": rounded(self.least_cosine),
        }


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the softmax of one row, float64."""
    shifted = logits - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def rounded(value: float, digits: int = 6) -> float | None:
    """Rounds to that many significant digits. Returns None for an infinity or a NaN, which JSON has not."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _largest(a: float, b: float) -> float:
    """Returns the larger number, or NaN if either is NaN, so that a broken engine is noticed."""
    return b if math.isnan(b) or b > a else a


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _perplexity(losses: list[float]) -> float:
    mean = _mean(losses)
    return math.exp(mean) if mean < 700 else math.inf
