"""Keeps names from being formulas when a spreadsheet opens a CSV file that has them.

A class may be called `=HYPERLINK(...)`: a spreadsheet would run it. Such a text is written with an
apostrophe before it, which spreadsheets take for "this is text", and read without it.
"""

_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def protect_cell(text: str) -> str:
    """Returns a text as it may stand in a CSV file; `restore_cell` undoes it.

    Numbers stay as they are, though some begin with a minus.
    """
    return f"'{text}" if _is_formula_like(text) else text


def restore_cell(text: str) -> str:
    """Returns the text that `protect_cell` was given."""
    return text[1:] if text.startswith("'") and _is_formula_like(text[1:]) else text


def _is_formula_like(text: str) -> bool:
    # Apostrophes before it do not count, or a text that has one already would lose it when read.
    return text.lstrip("'").startswith(_STARTS) and not _is_number(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip() == text
