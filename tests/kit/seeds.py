"""Seeds for sweeps: a test for each would take seconds to collect in every run of the suite."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

SHARD = 20


def shards(start: int, stop: int) -> pytest.MarkDecorator:
    """A slow test for every `SHARD` seeds; it takes the `first` of them."""
    assert (stop - start) % SHARD == 0, "the last test would go beyond the end"
    return pytest.mark.parametrize("first", range(start, stop, SHARD))


def shard(first: int) -> Iterator[int]:
    """The seeds of one such test; the last one printed is the one that failed."""
    for seed in range(first, first + SHARD):
        sys.stdout.write(f"seed {seed}\n")
        yield seed
