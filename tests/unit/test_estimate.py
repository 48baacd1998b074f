"""Token estimates: quarter tokens a character, and whole ones for wide characters."""

from __future__ import annotations

import random

import pytest

import timeline


@pytest.mark.parametrize(
    ("text", "scalar4", "wide"),
    [
        ("", 1, 1),
        ("abcd", 1, 1),
        ("abcde", 2, 2),
        ("中文测试", 1, 4),
        ("中文ab", 1, 3),
        ("🚀", 1, 1),
        ("é" * 8, 2, 2),
        ("한국어 text", 2, 5),
        ("ｆｕｌｌ", 1, 4),
        ("\U0003fffe", 1, 1),
    ],
)
def test_both_estimators_count_as_documented(text: str, scalar4: int, wide: int) -> None:
    assert timeline.estimate(text, "scalar4") == scalar4
    assert timeline.estimate(text, "wide") == wide


@pytest.mark.parametrize("seed", range(20))
def test_long_texts_count_like_their_characters_one_by_one(seed: int) -> None:
    random_ = random.Random(seed)
    borders = [edge + step for pair in timeline.WIDE_RANGES for edge in pair for step in (-1, 0, 1)]
    anywhere = [random_.randrange(0x20, 0xD800) for _ in range(200)]
    text = "".join(chr(random_.choice(borders + anywhere)) for _ in range(3_000))
    wide = sum(any(low <= ord(char) <= high for low, high in timeline.WIDE_RANGES) for char in text)
    assert timeline.estimate(text, "wide") == wide + (len(text) - wide + 3) // 4
