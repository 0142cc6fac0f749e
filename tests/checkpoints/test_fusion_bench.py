"""The page on fusion_bench names methods and options that there are, and all folders of its methods once."""

import re
from collections import Counter
from pathlib import Path

import pytest

from consilience.checkpoints.methods import TENSOR_METHODS, make_tensor_method

PAGE = Path(__file__).parents[2] / "docs" / "coming_from" / "fusion_bench.md"
FOLDERS = """ada_svd adamerging analysis bitdelta classification concrete_subspace dare dawe depth_upscaling doge_ta dop
emr_merging ensemble expert_sparsity fisher_merging fw_merging gossip isotropic_merging knots linear lm_finetune magmax
mixture_of_experts model_recombination model_stock moe_pruner opcm pruning pwe_moe randes rankone_moe regmean
regmean_plusplus simple_average singular_value_calibration slerp smile_upscaling sparse_we_moe sparselo surgery
tall_mask task_arithmetic task_singular_vector ties_merging trust_region we_moe weighted_average wudi"""
"""Folders and modules of fusion_bench.method in version 0.2.33, but for those that only others build on."""
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| `")
]
NOT_OF_MERGES = ("ensemble", "slices", "cs.fuse", "cs.sweep", "consilience network fisher")
BY_NAME = {method.name: method for method in TENSOR_METHODS}


def test_every_folder_of_fusion_bench_has_its_row():
    named = {name for there, *_ in ROWS for name in re.findall(r"`(\w+)`", there)}
    assert named == set(FOLDERS.split())


@pytest.mark.parametrize("row", [row for row in ROWS if row[2] == "works"], ids=lambda row: row[0])
def test_methods_and_options_of_a_row_exist(row):
    words = [word for word in re.findall(r"`([^`]+)`", row[1]) if word not in NOT_OF_MERGES]
    methods = [BY_NAME[word] for word in words if word in BY_NAME]
    assert len(methods) == (0 if "ensemble" in row[0] else 1)
    options = dict(word.split("=") for word in words if "=" in word)
    for method in methods:
        values = {"False": False, '"ties"': "ties", "0.8": 0.8}
        make_tensor_method(method.name, {name: values[value] for name, value in options.items()})
        others = [word for word in words if word not in BY_NAME and "=" not in word]
        assert set(others) <= {"weights", *method.__dataclass_fields__}


def test_the_page_counts_its_rows_and_names_what_else_there_is():
    counts, text = Counter(row[2] for row in ROWS), PAGE.read_text()
    said = (
        f"Of {len(ROWS)} rows {counts['works']} work, {counts['missing']} are missing and"
        f" {counts['out of scope']} are out of scope."
    )
    assert said in text
    there = {word for row in ROWS if row[2] == "works" for word in re.findall(r"`(\w+)`", row[1])}
    here = re.search(r"\n\n(`breadcrumbs`.*) are here and not there", text)[1]
    assert set(re.findall(r"`(\w+)`", here)) == set(BY_NAME) - there
