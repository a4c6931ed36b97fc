"""The passes: from the traced graph to what a target takes."""

import tensorwright.plugins.registry  # noqa: F401  (the IR's table of operations holds the plugins' from here on)
