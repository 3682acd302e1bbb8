"""The text of an error in a status."""

from urllib.parse import quote

import pytest

from adapter.errors import ConfigError
from adapter.runtime.serving.statuses import TEXT_MAX, text_of

LINE = "file.toml: flush.x: is not a setting"


@pytest.mark.parametrize("text", ["", "one line", f"{LINE}\n{LINE}", "x" * 10_000])
def test_a_text_that_is_short_or_of_one_line_is_told_as_it_is(text: str) -> None:
    """The servers cut a line that is too long."""
    assert text_of(ConfigError(text)) == text


@pytest.mark.parametrize("line", [LINE, "\u65e5\u672c" * 20])
def test_of_many_lines_those_are_told_for_which_there_is_room(line: str) -> None:
    """As whole lines, with how many are left out; in the bytes that are sent."""
    *told, more = text_of(ConfigError("\n".join([line] * 1_000))).split("\n")
    assert set(told) == {line}
    assert more == f"and {1_000 - len(told)} more lines"
    assert TEXT_MAX - len(quote(line)) - 3 < len(quote("\n".join(told))) <= TEXT_MAX
