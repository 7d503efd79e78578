import pytest

from flows.commands.terminal import make_harmless


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("bell \x07 back \x08", "bell \\x07 back \\x08"),
        ("turned \u202e around", "turned \\u202e around"),
        ("half \ud800", "half \\ud800"),
        ("lines\nand\tcolumns, ü, 字", "lines\nand\tcolumns, ü, 字"),
        ("<script>", "<script>"),
    ],
)
def test_control_codes_of_a_terminal_are_spelled_out(text, expected):
    assert make_harmless(text) == expected
