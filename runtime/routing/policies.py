"""Makes a routing policy by its name. `tensorwright/options/ray.py` declares the names."""

from __future__ import annotations

from collections.abc import Callable

from tensorwright.errors import InvalidOptionError
from tensorwright.options.ray import ROUTING
from tensorwright.runtime.routing.least_loaded import LeastLoaded
from tensorwright.runtime.routing.policy import RoutingPolicy
from tensorwright.runtime.routing.prefix_affinity import PrefixAffinity

POLICIES: dict[str, Callable[[], RoutingPolicy]] = dict(zip(ROUTING, (PrefixAffinity, LeastLoaded), strict=True))


def make_policy(name: str) -> RoutingPolicy:
    """Returns a new policy. Raises InvalidOptionError for a name that is none of POLICIES."""
    if name not in POLICIES:
        raise InvalidOptionError(f"routing must be one of {', '.join(POLICIES)}, got {name!r}")
    return POLICIES[name]()
