"""What is said of a file's provenance, which may be any JSON object."""

import pytest

from consilience.core.inspection import provenance_rows

SITES = [{"name": "lund", "weight": 1.0, "sha256": "ab"}, {"name": "oslo", "weight": 2.0, "sha256": None}]


def test_how_a_file_came_to_be_is_told_in_rows():
    made = {"method": "kl", "options": {"restarts": 2}, "seed": 3, "result": {"repaired": "refit"}, "inputs": SITES}
    assert provenance_rows(made) == [
        ("fused by", "kl {'restarts': 2} seed 3"),
        ("repaired", "refit"),
        ("from", "lund: weight 1.0, sha256 ab"),
        ("from", "oslo: weight 2.0, sha256 None"),
    ]


@pytest.mark.parametrize("result", [None, {}, {"repaired": None}, [1], ["repaired"], "repaired", 7, True], ids=str)
@pytest.mark.parametrize("inputs", [None, {}, "site", 7, [1, None, "site"]], ids=str)
def test_provenance_of_another_form_is_left_out(result, inputs):
    assert provenance_rows({"method": "kl", "result": result, "inputs": inputs}) == [("fused by", "kl None seed None")]
