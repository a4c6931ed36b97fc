"""Checks the options of replicas on Ray Serve, before a cluster is touched."""

from __future__ import annotations

from dataclasses import dataclass

from tensorwright.errors import InvalidOptionError
from tensorwright.options.declare import Door, check_values, options_in
from tensorwright.options.ray import RayFields
from tensorwright.runtime.base.keywords import StrictKeywords


@dataclass(frozen=True)
class RaySettings(StrictKeywords, RayFields):
    """The checked fields of RayFields, immutable. An impossible value raises InvalidOptionError."""

    def __post_init__(self) -> None:
        check_values(self, RayFields)
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise InvalidOptionError(
                f"max_replicas must be at least replicas ({self.replicas}), or None, got {self.max_replicas}"
            )
        if self.keep_replicas and self.ray_address is None:
            raise InvalidOptionError("keep_replicas needs ray_address: a cluster of this server's own ends with it")

    def require_unused(self) -> None:
        """Raises InvalidOptionError if `ray` is False and another option has a value that only means something with
        it."""
        for option in options_in(RayFields):
            if not self.ray and getattr(self, option.name) != option.default:
                raise InvalidOptionError(f"{option.shown(Door.SERVE).flag} needs --ray")
