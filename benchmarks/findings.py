"""Writes the sections of docs/findings.md, and the losses of README.md, from the files of runs.

`python -m benchmarks.findings NAME...` copies the files of these runs (`alpha_delta`, or
`expansion@cars` for a profile) from results/ and reports/ to docs/findings/, and writes every
section again; without names it only writes. A section is the text between two comment lines that
name the run; the text outside of them stays as it is.
"""

import json
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from dml_core.analysis.estimates import estimate_mean
from dml_core.measures.results import read_scores
from tasks.report_page.tables import collect_facts
from tasks.study import StudyRequest, load_context

FOLDER = Path("docs") / "findings"
PAGE = Path("docs") / "findings.md"
README = Path("README.md")
LOSSES = re.compile(r"<!-- losses -->\n.*?<!-- end -->", re.DOTALL)
SECTION = re.compile(r"<!-- run: (\S+) -->\n.*?<!-- end -->", re.DOTALL)
OVERVIEW = re.compile(r"<!-- overview -->\n.*?<!-- end -->", re.DOTALL)
BY_DATA = re.compile(r"<!-- claims by data -->\n.*?<!-- end -->", re.DOTALL)
DATA = {"": "glyphs", "cars": "Cars-196", "omniglot": "Omniglot", "coil": "COIL-20"}
"""The data of a profile, by its name."""
SEARCH_COST = "search_cost.*"
"""The figure of the measure `search_cost`."""
VERDICTS = ("supported", "contradicted", "cannot tell")
LOSS_METRIC = "recall_at_1"
LOSS_RUNS = {
    "glyphs, 128 dimensions": ("loss_comparison", 128),
    "Cars-196, 512 dimensions": ("loss_comparison@cars", 512),
}
"""By column, the run and the length of its embeddings."""
_KEPT_FACTS = ("command", "data hash", "training")
"""Without the seconds of a run: a call that finds trials of another study takes none for them."""
_TRAINING = re.compile(r"([\d,]+) s of training")


def main() -> None:
    """Collects the named runs and writes the page."""
    for name in sys.argv[1:]:
        collect(name)
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    README.write_text(render_readme(README.read_text(encoding="utf-8")), encoding="utf-8")


def collect(name: str) -> None:
    """Copies the results of a run: answer, scores, figures with their numbers, and provenance."""
    study, _, profile = name.partition("@")
    context = load_context(StudyRequest(study=study, profile=profile or None))
    target = FOLDER / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copyfile(context.evaluate_folder / "scores.json", target / "scores.json")
    for pattern in ("figure*", SEARCH_COST):
        for path in sorted((context.report_folder / "figures").glob(pattern)):
            if path.suffix in (".csv", ".png"):
                shutil.copyfile(path, target / path.name)
    answer = _read(context.report_folder / "answer.json")
    # A reader cannot reach the MLflow of this machine.
    answer.pop("compare_url", None)
    _write(target / "answer.json", answer)
    facts = collect_facts(context, read_scores(context.evaluate_folder))
    kept = {fact.name: fact.value for fact in facts if fact.name in _KEPT_FACTS}
    commit = _read(context.report_folder / "summary.json")["commit"]
    _write(target / "run.json", {"commit": commit, **kept})


def render_page(text: str) -> str:
    """Returns the page with overview and sections rendered from the files of the runs."""
    names = SECTION.findall(text)
    text = OVERVIEW.sub(lambda _: render_overview(names), text)
    text = BY_DATA.sub(lambda _: render_by_data(names), text)
    return SECTION.sub(lambda found: render_section(FOLDER / found.group(1)), text)


def render_readme(text: str) -> str:
    """Returns the README with the table of losses rendered from the files of the runs."""
    return LOSSES.sub(lambda _: f"<!-- losses -->\n{render_losses(FOLDER)}\n<!-- end -->", text)


def render_overview(names: list[str]) -> str:
    """Returns a table of the runs: how many claims each supports, contradicts and leaves open."""
    rows, totals = [], Counter[str]()
    for name in names:
        answer, run = _read(FOLDER / name / "answer.json"), _read(FOLDER / name / "run.json")
        counts = Counter(claim["verdict"] for claim in answer["claims"])
        counts["seconds"] = _read_seconds(run)
        rows.append(_render_row(f"[{name}](#{_anchor(name)})", counts))
        totals.update(counts)
    head = ["<!-- overview -->", "| run | supported | contradicted | cannot tell | core minutes |"]
    return "\n".join(
        [*head, "|---|---:|---:|---:|---:|", *rows, _render_row("all", totals), "<!-- end -->"]
    )


def render_by_data(names: list[str]) -> str:
    """Returns a table of the claims that were judged on several datasets: a claim by its data."""
    runs: dict[str, dict[str, str]] = {}
    for name in names:
        study, _, profile = name.partition("@")
        runs.setdefault(study, {})[DATA[profile]] = name
    several = {study: found for study, found in runs.items() if len(found) > 1}
    columns = [data for data in DATA.values() if any(data in found for found in several.values())]
    rows = []
    for study, found in several.items():
        verdicts = {data: _read_verdicts(name) for data, name in found.items()}
        for text in verdicts[DATA[""]]:
            cells = (verdicts.get(data, {}).get(text, "-") for data in columns)
            rows.append(f"| `{study}`: {text} | {' | '.join(cells)} |")
    head = ["<!-- claims by data -->", f"| claim | {' | '.join(columns)} |"]
    return "\n".join([*head, f"|---|{'---|' * len(columns)}", *rows, "<!-- end -->"])


def _read_verdicts(name: str) -> dict[str, str]:
    claims = _read(FOLDER / name / "answer.json")["claims"]
    return {claim["text"]: claim["verdict"] for claim in claims}


def _render_row(title: str, counts: Counter[str]) -> str:
    numbers = " | ".join(str(counts[verdict]) for verdict in VERDICTS)
    return f"| {title} | {numbers} | {counts['seconds'] / 60:.1f} |"


def _read_seconds(run: dict[str, str]) -> int:
    """Returns the seconds that a run's trials trained, those of trials that it shares included."""
    found = _TRAINING.search(run["training"])
    return int(found.group(1).replace(",", "")) if found else 0


def _anchor(name: str) -> str:
    """Returns the anchor of a heading."""
    return name.lower().replace("@", "")


def render_section(folder: Path) -> str:
    """Returns a run's section: command, claims with their verdicts, table and figures."""
    answer, run = _read(folder / "answer.json"), _read(folder / "run.json")
    here = f"{folder.parent.name}/{folder.name}"
    lines = [
        f"<!-- run: {folder.name} -->",
        f"**{answer['question']}**",
        "",
        f"`{run['command']}`, commit {run['commit'][:12]}, data {run['data hash'][:12]}, "
        f"{run['training']}. Numbers: [answer]({here}/answer.json), "
        f"[scores]({here}/scores.json), {_link_numbers(folder, here)}.",
        "",
        *_render_claims(answer["claims"]),
        *(f"![{answer['question']}]({here}/{path.name})" for path in _figures(folder)),
        "<!-- end -->",
    ]
    return "\n".join(lines)


def _render_claims(claims: list[dict[str, str]]) -> list[str]:
    rows = [
        f"| {claim['text']} | {claim['verdict']} | {_strip_verdict(claim)} |" for claim in claims
    ]
    return ["| claim | here | measured |", "|---|---|---|", *rows, ""] if rows else []


def _strip_verdict(claim: dict[str, str]) -> str:
    text = claim["explanation"].removeprefix(f"{claim['verdict']}: ")
    return text.replace("|", "\\|")


def _link_numbers(folder: Path, here: str) -> str:
    return ", ".join(f"[{p.stem}]({here}/{p.name})" for p in sorted(folder.glob("*.csv")))


def _figures(folder: Path) -> list[Path]:
    figures = sorted(folder.glob("figure*.png"), key=lambda path: (len(path.stem), path.stem))
    return [*figures, *(path for path in folder.glob(SEARCH_COST) if path.suffix == ".png")]


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def render_losses(folder: Path) -> str:
    """Returns a row for each loss, the best one on the embedded data first."""
    scores = {run: read_scores(folder / run).scores for run, _ in LOSS_RUNS.values()}
    first, length = next(iter(LOSS_RUNS.values()))
    rows = []
    for arm, by_seed in scores[first].items():
        loss, _, found = arm.rpartition("-")
        if found != str(length):
            continue
        cells = [_show(scores[run].get(f"{loss}-{size}")) for run, size in LOSS_RUNS.values()]
        rows.append((-_mean(by_seed), loss, cells))
    lines = [f"| `{loss}` | {' | '.join(cells)} |" for _, loss, cells in sorted(rows)]
    head = [f"| loss | {' | '.join(LOSS_RUNS)} |", f"|---|{'---:|' * len(LOSS_RUNS)}"]
    return "\n".join([*head, *lines])


def _mean(by_seed: dict[int, dict[str, float]]) -> float:
    return float(estimate_mean([numbers[LOSS_METRIC] for numbers in by_seed.values()]).mean)


def _show(by_seed: dict[int, dict[str, float]] | None) -> str:
    if by_seed is None:
        return "-"
    found = estimate_mean([numbers[LOSS_METRIC] for numbers in by_seed.values()])
    half = 100 * (float(found.high) - float(found.low)) / 2
    return f"{100 * float(found.mean):.1f} ± {half:.1f}"


if __name__ == "__main__":
    main()
