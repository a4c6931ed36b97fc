"""Builds an engine from a checkpoint."""

import tensorwright.plugins.registry  # noqa: F401  (the IR's table of operations holds the plugins' from here on)
