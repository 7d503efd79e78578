"""Scores by class as records: the worst, groups by size, and their file."""

from dml_core.measures.class_scores import (
    ClassScore,
    SizeGroup,
    find_worst,
    group_by_size,
    read_classes,
    write_class_scores,
)


def make_score(name, recall, *, size=4, instead=""):
    return ClassScore(name, size, size, recall, instead)


def test_the_worst_come_first_and_larger_classes_before_smaller_ones():
    scores = [
        make_score("good", 1.0), make_score("bad", 0.25), make_score("small", 0.0, size=2),
        make_score("large", 0.0, size=9), make_score("also bad", 0.25),
    ]  # fmt: skip
    assert [s.name for s in find_worst(scores)] == ["large", "small", "also bad", "bad"]
    assert [s.name for s in find_worst(scores, count=1)] == ["large"]
    assert find_worst([make_score("good", 1.0)]) == []


def test_groups_hold_equally_many_classes_and_equal_sizes_stay_together():
    scores = [make_score(f"c{size}", size / 10, size=size) for size in range(1, 11)]
    groups = group_by_size(scores)
    assert [(g.smallest, g.largest, g.num_classes) for g in groups] == [
        (1, 2, 2), (3, 4, 2), (5, 6, 2), (7, 8, 2), (9, 10, 2),
    ]  # fmt: skip
    # Means over queries: (1 * 0.1 + 2 * 0.2) / 3.
    assert abs(groups[0].recall_at_1 - 0.5 / 3) < 1e-12
    alike = [make_score(f"c{number}", 0.5) for number in range(10)]
    assert group_by_size(alike) == [SizeGroup(4, 4, 10, 0.5)]
    skewed = [*alike, make_score("large", 1.0, size=50)]
    assert [(g.smallest, g.num_classes) for g in group_by_size(skewed)] == [(4, 10), (50, 1)]
    assert group_by_size([]) == []


def test_scores_survive_their_file_with_names_that_look_like_formulas(tmp_path):
    scores = [make_score("=HYPERLINK(1)", 0.5, instead='a, "b"'), make_score("日本", 1.0)]
    path = write_class_scores(scores, tmp_path / "evaluate")
    assert "'=HYPERLINK" in path.read_text(encoding="utf-8")
    assert read_classes(path.parent) == scores
    assert read_classes(tmp_path / "nothing") == []
