import html
import re

import pytest
from markdown_it import MarkdownIt

from tasks.artifacts import Markdown, artifact_key, render_table


def test_a_table_has_a_line_for_each_row_and_escapes_bars():
    text = render_table(["arm", "score"], [["a|b", 0.5], ["c", ""]])
    assert text == "| arm | score |\n| --- | --- |\n| a\\|b | 0.5 |\n| c |  |\n"


@pytest.mark.parametrize(
    "name",
    [
        "![pixel](http://host/x.png)",
        "[here](http://host)",
        "[here][1]",
        "<img src=http://host/x.png>",
        "<http://host>",
        "`code` \\| bar",
        "&lt;b&gt; a!b",
        "c\nd | e",
        "see http://host/x.png>, www.host.com",
    ],
)
def test_a_name_is_shown_as_it_stands(name):
    line = render_table(["arm"], [[name]]).splitlines()[2]
    # As a page shows it, with nothing left that Markdown reads as more than a letter.
    shown = MarkdownIt("commonmark").enable("table").render(f"| arm |\n| --- |\n{line}\n")
    (cell,) = re.findall(r"<td>(.*)</td>", shown)
    assert html.unescape(cell) == " ".join(name.split())
    assert "<" not in cell
    # Pages turn bare addresses into links.
    assert not re.search(r"(?<!\\)://|www\.", line)


def test_a_cell_that_is_markdown_stays():
    link = Markdown("[report](file:///report.html)")
    assert render_table(["a"], [[link]]).splitlines()[2] == f"| {link} |"


def test_a_cell_is_no_tag():
    assert render_table(["a"], [["<script>"]]).splitlines()[2] == "| &lt;script> |"


@pytest.mark.parametrize("name", ["answer-main", "run-Größe_2@smoke", "sweep-a.b c@0f3a"])
def test_a_key_is_one_that_prefect_takes(name):
    assert re.fullmatch(r"[a-z0-9]+(-+[a-z0-9]+)*", artifact_key(name))
