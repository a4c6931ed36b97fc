"""The builder: from a checkpoint to an engine."""

import tensorwright.plugins.registry  # noqa: F401  (the IR's table of operations holds the plugins' from here on)
