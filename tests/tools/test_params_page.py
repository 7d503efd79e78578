from tools.params_page import PAGE, render_page


def test_the_page_is_the_one_that_the_models_give():
    assert PAGE.read_text(encoding="utf-8") == render_page(), "run: python -m tools.params_page"


def test_every_row_has_four_cells():
    rows = [line for line in render_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if row.replace("\\|", "").count("|") != 5] == []
