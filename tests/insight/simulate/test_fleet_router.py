"""What a simulated router tells its policy: loads that go up and down, and keys of common beginnings."""

from __future__ import annotations

import numpy as np
import pytest

from tensorwright.insight.simulate.fleet_router import ROUTERS, FleetRouter
from tensorwright.insight.simulate.traffic import Traffic
from tensorwright.options.simulate import ROUTERS as NAMES


def traffic(prompts: list[int], shared: list[int], prefixes: list[int]) -> Traffic:
    columns = [np.array(column, np.int32) for column in (prompts, [4] * len(prompts), prefixes, shared)]
    own = np.arange(len(prompts), dtype=np.int32)
    return Traffic(np.zeros(len(prompts), np.int64), *columns, own, np.zeros(len(prompts), np.int32))


def router(name: str, replicas: int, requests: Traffic) -> FleetRouter:
    return FleetRouter(name, replicas, 4, 16, requests)


def test_the_options_have_the_names_of_the_policies() -> None:
    assert tuple(ROUTERS) == NAMES


def test_a_load_goes_up_with_a_request_and_down_at_its_end() -> None:
    made = router("least-loaded", 2, traffic([10] * 6, [0] * 6, [0] * 6))
    assert [made.choose(0), made.choose(1), made.choose(2)] == [0, 1, 0]
    made.finished(0)
    made.finished(2)
    assert made.choose(3) == 0
    assert made.choose(4) in (0, 1)
    with pytest.raises(KeyError):
        made.finished(5)


def test_prompts_that_begin_alike_have_the_same_first_keys() -> None:
    made = router("prefix", 2, traffic([100, 90, 100, 33, 5000], [48, 48, 48, 32, 0], [1, 1, 2, 1, 1]))
    keys = [made._keys(index) for index in range(5)]
    assert [len(each) for each in keys] == [6, 5, 6, 2, 64]
    assert keys[0][:3] == keys[1][:3]
    assert keys[0][:2] == keys[3]
    assert not set(keys[0]) & set(keys[2])
    assert not set(keys[0][3:]) & set(keys[1])
    assert all(0 <= key < 1 << 64 for each in keys for key in each)


def test_prompts_that_begin_alike_go_to_the_same_replica() -> None:
    count = 40
    made = router("prefix", 8, traffic([100] * count, [96] * count, [i % 4 for i in range(count)]))
    chosen: dict[int, set[int]] = {}
    for index in range(count):
        chosen.setdefault(index % 4, set()).add(made.choose(index))
        made.finished(index)
    assert all(len(replicas) == 1 for replicas in chosen.values())
