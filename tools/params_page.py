"""Writes docs/params.md, the reference of all keys, from the configuration models.

python -m tools.params_page
"""

from collections.abc import Iterable
from pathlib import Path

from dml_core.studies.described_keys import (
    PARAMS_FILE,
    STUDY_FILE,
    DescribedKey,
    describe_keys,
    list_sections,
)

PAGE = Path(__file__).parents[1] / "docs" / "params.md"
_HEAD = """# Every key

`python -m tools.params_page` writes this page from the configuration models. `dml explain KEY`
shows the same for one key, with its value in `params.yaml`; `dml explain loss` for a section.

A section with a `name` has several kinds; kinds in brackets mark the keys that only they have.
Another `name` keeps the keys that both kinds share and drops the others. The same names are the
arguments of the [library](library.md).
"""
_STUDY_HEAD = """
## Keys of a study file

The files of `studies/`, see [studies.md](studies.md). `fixed`, `scientific`, `nuisance` and `grid`
hold keys of the sections above. `<name>` is a name that the file chooses.
"""
_COLUMNS = "\n| key | value | default | meaning |\n|---|---|---|---|\n"


def render_page() -> str:
    """Returns the page."""
    keys = describe_keys()
    parts = [_HEAD]
    for section, meaning in list_sections().items():
        own = [
            each
            for each in keys
            if each.file == PARAMS_FILE and each.key.partition(".")[0] == section
        ]
        parts.append(f"\n## {section}\n\n{meaning}\n{_render_table(own)}")
    parts.append(_STUDY_HEAD + _render_table(each for each in keys if each.file == STUDY_FILE))
    return "".join(parts)


def _render_table(keys: Iterable[DescribedKey]) -> str:
    return _COLUMNS + "".join(f"{_render_row(each)}\n" for each in keys)


def _render_row(each: DescribedKey) -> str:
    kinds = f" ({', '.join(each.kinds)})" if each.kinds else ""
    value = ", ".join(filter(None, [each.type, each.unit, each.rule]))
    default = f"`{each.default}`" if each.default not in ("", "required", "empty") else each.default
    cells = [f"`{each.key}`{kinds}", value, default, each.meaning]
    # A bar ends a cell, also inside code.
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> None:
    """Writes the page."""
    PAGE.write_text(render_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
