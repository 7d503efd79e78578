"""Problems are gathered, and long lists are cut."""

import pytest

from dml_core.data.records import DatasetError, raise_for, shorten_list, shorten_text


def test_nothing_is_raised_without_problems():
    assert raise_for("table.csv", [[], []]) is None


def test_all_kinds_are_listed_with_the_total_and_the_advice():
    with pytest.raises(DatasetError) as caught:
        raise_for("table.csv", [["first."], [], ["second.", "third."]], advice="Mend it.")
    assert str(caught.value) == (
        "table.csv has 3 problem(s):\n  - first.\n  - second.\n  - third.\nMend it."
    )


def test_ten_of_a_kind_are_shown_and_all_are_counted():
    with pytest.raises(DatasetError, match=r"has 1,025 problem\(s\)") as caught:
        raise_for("table.csv", [[f"row {n}." for n in range(1_024)], ["other."]])
    message = str(caught.value)
    assert "row 9." in message
    assert "row 10." not in message
    assert "... and 1,014 more like these (1,024 in all)." in message
    assert message.endswith("- other.")


def test_exactly_ten_are_shown_whole():
    assert shorten_list([str(n) for n in range(10)]) == [str(n) for n in range(10)]


def test_long_values_are_cut():
    assert shorten_text("x" * 200) == "'" + "x" * 76 + "..."
    assert shorten_text("short") == "'short'"
