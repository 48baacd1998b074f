"""The JSON that the engine reads is that of the standard, whichever way it takes inside."""

from __future__ import annotations

import json

import pytest

import timeline

SPACES = [chr(code) for code in range(0x3001) if chr(code).isspace()]


@pytest.mark.parametrize("space", SPACES, ids=lambda char: f"U+{ord(char):04X}")
@pytest.mark.parametrize("shape", ["{0}[1]", "[1]{0}", "[1] {0}\n", "[1,{0}2]", "{{{0}}}"])
def test_only_four_characters_are_white_space(shape: str, space: str) -> None:
    text = shape.format(space)
    if space in " \t\r\n":
        assert timeline.loads(text) == json.loads(text)
        return
    with pytest.raises(ValueError, match=r"line \d+ column \d+"):
        timeline.loads(text)


@pytest.mark.parametrize("text", ["[1]x", "[1] x", "[1]\0", "{}{}", "", " "])
def test_what_follows_a_value_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="char"):
        timeline.loads(text)
