"""Errors as a person reads them, and progress of phases within phases."""

from __future__ import annotations

from tensorwright.builder.emit.tensorrt.listeners import MAX_TEXT, Tree, join_errors, without_noise

NOISE = "[checkMacros.cpp] Error Code 1: Cuda Runtime (cudaError 35: CUDA driver version is insufficient)"


def test_the_absent_driver_is_not_what_went_wrong():
    assert without_noise(f"Invalid Node - a\n shapes differ \n{NOISE}") == "Invalid Node - a shapes differ"
    assert join_errors([NOISE, "fp8 is not for sm80", NOISE]) == "fp8 is not for sm80"


def test_the_absent_driver_is_told_where_there_is_nothing_else():
    assert join_errors([NOISE]) == NOISE
    assert join_errors([]) == ""


def test_an_account_is_short():
    assert len(without_noise("x" * 10_000)) == MAX_TEXT


def test_progress_of_inner_phases_counts_for_their_share():
    tree = Tree()
    tree.start("all", None, 4)
    tree.step("all", 0)
    assert tree.fraction == 0.25
    tree.start("part", "all", 2)
    tree.step("part", 0)
    assert tree.fraction == 0.375
    tree.finish("part")
    tree.step("all", 1)
    assert tree.fraction == 0.5


def test_progress_never_falls_and_never_passes_the_end():
    tree = Tree()
    tree.start("all", None, 2)
    for index in (0, 1, 5, 0):
        tree.step("all", index)
    assert tree.fraction == 1.0
    tree.step("unknown", 0)
    assert tree.fraction == 1.0
