import re

import pytest

from tasks.artifacts import artifact_key, render_table


def test_a_table_has_a_line_for_each_row_and_escapes_bars():
    text = render_table(["arm", "score"], [["a|b", 0.5], ["c", ""]])
    assert text == "| arm | score |\n| --- | --- |\n| a\\|b | 0.5 |\n| c |  |\n"


def test_a_cell_is_no_tag():
    assert render_table(["a"], [["<script>"]]).splitlines()[2] == "| &lt;script> |"


@pytest.mark.parametrize("name", ["answer-main", "run-Größe_2@smoke", "sweep-a.b c@0f3a"])
def test_a_key_is_one_that_prefect_takes(name):
    assert re.fullmatch(r"[a-z0-9]+(-+[a-z0-9]+)*", artifact_key(name))
