# The compiled module, see runtime/bindings. Untyped: its doors are tensorwright.runtime.engine.native and the tests.
from typing import Any

def __getattr__(name: str) -> Any: ...
