"""Engine and naive model answer alike all through random runs, reopened or not."""

from __future__ import annotations

import os

import pytest

from kit.compare import check_seed

STEPS = 60
SEEDS = 30
SLOW_SEEDS = 2000
SHARD = 50


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is cut off here, and waiting for the disk is most of the time."""
    for name in ("fsync", "fdatasync"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, lambda _: None)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_engine_answers_as_the_model_does(seed: int) -> None:
    check_seed(seed, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + SLOW_SEEDS, SHARD))
def test_engine_answers_as_the_model_does_in_many_runs(first: int) -> None:
    for seed in range(first, first + SHARD):
        check_seed(seed, STEPS)
