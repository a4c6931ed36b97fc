import tensorwright.plugins.registry  # noqa: F401  (this import puts the plugins' operations into the IR's table)
