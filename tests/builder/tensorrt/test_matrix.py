"""Which types, formats and SMs go together, and what is said of the others."""

from __future__ import annotations

import pytest

from tensorwright.builder.emit.tensorrt.matrix import (
    DEFAULT_KERNEL_SMS,
    NEEDS,
    SMS,
    check_pairs,
    check_sms,
)
from tensorwright.errors import InvalidOptionError
from tensorwright.plugins.gpu.needs import FP8_CACHE

BUILDS = {
    "float16": SMS, "int8": SMS, "bfloat16": SMS[1:], "float32": SMS[1:], "int4": SMS[1:], "fp8": (89, 120, 121),
    FP8_CACHE: SMS[1:],
}  # fmt: skip


def test_the_table_knows_every_need():
    assert set(BUILDS) == set(NEEDS)


@pytest.mark.parametrize("sm", SMS)
@pytest.mark.parametrize("need", NEEDS)
def test_a_pair_is_admitted_or_refused_with_a_reason(need, sm):
    if sm in BUILDS[need]:
        check_sms((sm,))
        check_pairs([need], (sm,))
    else:
        with pytest.raises(InvalidOptionError, match=rf"{need} cannot be built for SM {sm}: .+; say --sm"):
            check_pairs([need], (sm,))


@pytest.mark.parametrize("sm", [90, 100, 103])
def test_sms_that_rtx_cannot_name_are_refused_by_name(sm):
    says = rf"SM {sm}: TensorRT for RTX does not run on data-centre .+leave it out"
    with pytest.raises(InvalidOptionError, match=says):
        check_sms((80, sm))


@pytest.mark.parametrize("sm", [70, 122])
def test_an_unknown_sm_is_told_which_there_are(sm):
    with pytest.raises(
        InvalidOptionError, match=f"SM {sm}: our GPU kernels are compiled for 75, 80, 86, 89, 120, 121; say"
    ):
        check_sms((sm,))


def test_full_tensorrt_builds_on_a_hopper():
    check_sms((90,), any_sm=False)
    with pytest.raises(InvalidOptionError, match="SM 100: our GPU kernels are compiled for"):
        check_sms((100,), any_sm=False)


def test_one_impossible_sm_of_several_is_found():
    with pytest.raises(InvalidOptionError, match="fp8 cannot be built for SM 86"):
        check_pairs(["float16", "fp8"], (89, 86, 120))


def test_a_default_engine_takes_what_its_lowest_sm_has():
    check_pairs(["bfloat16", "int4"], ())
    assert min(DEFAULT_KERNEL_SMS) == 80
    with pytest.raises(InvalidOptionError, match=r"fp8 cannot be built without an SM.*say --sm 89"):
        check_pairs(["bfloat16", "fp8"], ())
