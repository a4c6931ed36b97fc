"""Declares and checks the settings of a load test before anything is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tensorwright.errors import InvalidOptionError
from tensorwright.runtime.base.picture_file import check_picture
from tensorwright.runtime.serving.load_test.workload import ARRIVALS, FIXED, PROFILES

PROMPTS = ("text", "ids")
FIXED_LENGTHS = (512, 128)
LONGEST = (4096, 1024)


@dataclass(frozen=True)
class LoadSettings:
    """The options of `tensorwright bench serve` by their names. None means that the option was not given."""

    requests: int = 100
    rate: float | None = None
    arrival: str | None = None
    burst_size: int | None = None
    concurrency: int | None = None
    profile: str = "chat"
    input_len: int | None = None
    output_len: int | None = None
    prompts: str = "text"
    token_range: tuple[int, int] | None = None
    ttft_limit: float | None = None
    itl_limit: float | None = None
    itl_percentile: float = 99.0
    ignore_eos: bool = True
    temperature: float = 0.0
    warmup: int = 1
    timeout: float = 300.0
    seed: int = 0

    @property
    def lengths(self) -> tuple[int, int]:
        """The tokens of prompt and output: the lengths of the fixed profile, or the bounds of another profile."""
        prompt, output = FIXED_LENGTHS if self.profile == FIXED else LONGEST
        return self.input_len or prompt, self.output_len or output

    def check(self) -> None:
        """Raises InvalidOptionError for the first setting that is impossible."""
        for name in ("requests", "burst_size", "concurrency", "input_len", "output_len"):
            value = getattr(self, name)
            _require(value is None or value >= 1, f"{_flag(name)} must be at least 1", value)
        for name in ("rate", "ttft_limit", "itl_limit", "timeout"):
            value = getattr(self, name)
            _require(value is None or 0 < value < math.inf, f"{_flag(name)} must be a positive number", value)
        for name in ("warmup", "seed"):
            _require(getattr(self, name) >= 0, f"{_flag(name)} must be 0 or more", getattr(self, name))
        _require(0 <= self.temperature < math.inf, "--temperature must be 0 or more", self.temperature)
        _require(0 < self.itl_percentile <= 100, "--itl-percentile must be above 0, up to 100", self.itl_percentile)
        _require(self.profile in (FIXED, *PROFILES), "--profile must be one that exists", self.profile)
        _require(self.prompts in PROMPTS, f"--prompts must be one of {', '.join(PROMPTS)}", self.prompts)
        self._check_arrivals()
        self._check_token_range()

    def _check_arrivals(self) -> None:
        if self.concurrency is not None:
            for name in ("rate", "arrival", "burst_size"):
                given = getattr(self, name)
                _require(given is None, f"--concurrency sets when requests are sent: leave out {_flag(name)}", given)
        _require(self.arrival in (None, *ARRIVALS), f"--arrival must be one of {', '.join(ARRIVALS)}", self.arrival)
        if self.burst_size is not None:
            _require(self.arrival == "burst", "--burst-size needs --arrival burst", self.arrival)
            _require(self.rate is not None, "--burst-size needs --rate, which says how often bursts come", self.rate)
        elif self.arrival == "burst":
            _require(self.rate is None, "--arrival burst with --rate needs --burst-size", None)

    def _check_token_range(self) -> None:
        if self.token_range is None:
            return
        low, high = self.token_range
        _require(self.prompts == "ids", "--token-range needs --prompts ids", self.prompts)
        _require(0 <= low < high, "--token-range must be LOW HIGH with 0 <= LOW < HIGH", f"{low} {high}")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _require(holds: bool, rule: str, came: object) -> None:
    if not holds:
        raise InvalidOptionError(f"{rule}, got {came}")


def base_url(url: str) -> str:
    """Returns the URL without an end of /v1, which openai's base_url has. Raises InvalidOptionError for a URL that is
    no server's."""
    parts = urlsplit(url)
    try:
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # The port is no number.
        valid = False
    if not valid or parts.query or parts.fragment:
        raise InvalidOptionError(f"URL must be that of a server, such as http://127.0.0.1:8000, got {url!r}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def check_api_key(key: str | None) -> None:
    """Raises InvalidOptionError for a key that cannot stand in a header. The message does not show the key."""
    if key is not None and (not key or not key.isascii() or not key.isprintable() or " " in key):
        raise InvalidOptionError("--api-key must be printable ASCII characters without spaces, got something else")


def check_plot(path: str | None) -> Path | None:
    """Returns the path of the picture. A path that cannot be written is refused before the test, not after it."""
    return None if path is None else check_picture(path, "--plot")
