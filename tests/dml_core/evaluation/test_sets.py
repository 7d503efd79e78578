"""Roles decide who is searched where."""

import numpy as np
import pytest

from dml_core.evaluation.arrays import split_by_role


@pytest.mark.parametrize("roles", [None, np.array(["test"] * 3)])
def test_without_query_and_gallery_all_are_searched_among_all(roles):
    values = np.array([5, 6, 7])
    queries, gallery = split_by_role(roles, num_rows=3).split(values)
    assert queries.tolist() == [5, 6, 7]
    assert gallery is None


def test_queries_and_gallery_keep_their_order():
    sets = split_by_role(np.array(["gallery", "query", "gallery", "query"]), num_rows=4)
    queries, gallery = sets.split(np.array([[1], [2], [3], [4]]))
    assert queries.tolist() == [[2], [4]]
    assert gallery.tolist() == [[1], [3]]


@pytest.mark.parametrize("names", [["query"], ["gallery"], ["gallery", "query", "test"]])
def test_half_named_sets_are_refused_with_the_names(names):
    with pytest.raises(ValueError, match=f"Got \\{sorted(names)}"):
        split_by_role(np.array(names), num_rows=len(names))


def test_roles_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"each of the 3 images. Got shape \(2,\)"):
        split_by_role(np.array(["query", "gallery"]), num_rows=3)
