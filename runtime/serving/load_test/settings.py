"""Declares and checks the settings of a load test before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tensorwright.errors import InvalidOptionError
from tensorwright.options.bench import LoadTestFields, lengths_of
from tensorwright.options.declare import Door, check_values, flag_of
from tensorwright.options.server import is_api_key
from tensorwright.runtime.base.picture_file import check_picture


@dataclass(frozen=True)
class LoadSettings(LoadTestFields):
    """The fields of LoadTestFields, and the checks of what they mean together."""

    @property
    def lengths(self) -> tuple[int, int]:
        """The tokens of prompt and output: the lengths of the fixed profile, or the bounds of another profile."""
        return lengths_of(self.profile, self.input_len, self.output_len)

    def check(self) -> None:
        """Raises InvalidOptionError for the first setting that is impossible."""
        check_values(self, LoadTestFields, door=Door.BENCH_SERVE)
        self._check_arrivals()
        _require(self.token_range is None or self.prompts == "ids", "--token-range needs --prompts ids", self.prompts)

    def _check_arrivals(self) -> None:
        if self.concurrency is not None:
            for name in ("rate", "arrival", "burst_size"):
                given = getattr(self, name)
                _require(given is None, f"--concurrency sets when requests are sent: leave out {flag_of(name)}", given)
        if self.burst_size is not None:
            _require(self.arrival == "burst", "--burst-size needs --arrival burst", self.arrival)
            _require(self.rate is not None, "--burst-size needs --rate, which says how often bursts come", self.rate)
        elif self.arrival == "burst":
            _require(self.rate is None, "--arrival burst with --rate needs --burst-size", None)


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
    if key is not None and not is_api_key(key):
        raise InvalidOptionError("--api-key must be printable ASCII characters without spaces, got something else")


def check_plot(path: str | None) -> Path | None:
    """Returns the path of the picture. A path that cannot be written is refused before the test, not after it."""
    return None if path is None else check_picture(path, "--plot")
