"""Covering arrays hold every combination of values that any case has, in few cases."""

from itertools import combinations, product

import pytest

from tests.covering import covering_rows

SHAPES = [(2, 2), (3, 4, 2), (5, 4, 3, 2), (1, 3, 3), (4,)]


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("strength", [1, 2])
def test_every_combination_of_so_many_values_is_in_a_row(sizes, strength):
    rows = list(product(*map(range, sizes)))
    chosen = [rows[place] for place in covering_rows(rows, strength)]
    for columns in combinations(range(len(sizes)), min(strength, len(sizes))):
        expected = set(product(*(range(sizes[column]) for column in columns)))
        assert {tuple(row[column] for column in columns) for row in chosen} == expected


def test_rows_are_few():
    assert len(covering_rows(list(product(range(5), range(4), range(3), range(2))), 2)) < 25  # of 120; 20 at least
    assert len(covering_rows(list(product(range(5), range(4), range(3))), 1)) == 5


def test_cases_that_are_no_product_keep_every_value():
    rows = [("kl", "mlp"), ("average", "mlp"), ("kl", "gru"), ("average", "vgg")]
    assert covering_rows(rows, 1) == [0, 2, 3]
    assert covering_rows(rows, 2) == [0, 1, 2, 3]


@pytest.mark.covering(1)
@pytest.mark.parametrize("first", ["a", "b"])
@pytest.mark.parametrize("second", ["x", "y"])
def test_a_marked_law_runs_its_covering_array(first, second, request):
    is_covered = (first, second) in (("a", "x"), ("b", "y"))
    assert (request.node.get_closest_marker("slow") is None) == is_covered


@pytest.mark.covering(1)
@pytest.mark.parametrize("value", ["a", "b"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_first_seed_of_a_marked_law_stands_for_all(value, seed, request):
    assert (request.node.get_closest_marker("slow") is None) == (seed == 1)
