"""Protects cells of CSV files from being run as formulas by a spreadsheet.

A class may be called `=HYPERLINK(...)`, which a spreadsheet would run. Such a text is written with
a leading apostrophe, which marks text in spreadsheets, and read without it.
"""

_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def protect_cell(text: str) -> str:
    """Returns a text that is safe in a CSV file; `restore_cell` reverses it.

    Numbers stay unchanged, even with a leading minus.
    """
    return f"'{text}" if _is_formula_like(text) else text


def restore_cell(text: str) -> str:
    """Returns the original text of `protect_cell`."""
    return text[1:] if text.startswith("'") and _is_formula_like(text[1:]) else text


def _is_formula_like(text: str) -> bool:
    # Leading apostrophes are ignored, so that a text that already has one keeps it.
    return text.lstrip("'").startswith(_STARTS) and not _is_number(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.strip() == text
