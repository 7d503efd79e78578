import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_core.data.spreadsheet_cells import protect_cell, restore_cell

FORMULAS = [
    '=HYPERLINK("http://evil","x")',
    "=1+1",
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "＝1",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_text_in_the_file(text):
    assert protect_cell(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "bird", "a=b", "-0.5", "+3", "-1e-4", "'tis", "<script>"])
def test_other_texts_and_numbers_stay(text):
    assert protect_cell(text) == text
    assert restore_cell(text) == text


@settings(deadline=None)
@given(st.text() | st.sampled_from(FORMULAS).map("'{}".format) | st.from_regex(r"'*[=+\-@].*"))
def test_what_was_protected_comes_back_through_a_file(text):
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerow([protect_cell(text)])
    ((read,),) = csv.reader(io.StringIO(written.getvalue(), newline=""))
    assert restore_cell(read) == text
    assert read == text or read[0] == "'"
