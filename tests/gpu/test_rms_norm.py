"""rms_norm and add_rms_norm on a GPU, against the definitions in numpy."""

from __future__ import annotations

from typing import Any

import pytest

from support import gpu_rms_norm as interpreted

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", interpreted.DTYPES)
@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize(("rows", "channels"), [(1, 64), (3, 1), (17, 65), (200, 4096), (3, 16384)])
def test_equals_the_definition(device: Any, rows: int, channels: int, dtype: str, with_sum: bool) -> None:
    interpreted.check(interpreted.run(device, rows, channels, dtype, with_sum), dtype)
