"""Every public name has a page in the reference."""

import re
from pathlib import Path

import pytest

import consilience

PAGE = (Path(__file__).parents[1] / "docs/api/index.md").read_text()
LISTED = set(re.findall(r"^   (consilience\.[\w.]+)$", PAGE, flags=re.MULTILINE))
PUBLIC = ("methods", "results", "families", "learners", "features", "engines", "testing", "federated")


def names_of(module):
    return [name for name in getattr(module, "__all__", dir(module)) if not name.startswith("_")]


def test_every_function_and_value_has_a_page():
    modules = {*PUBLIC, "errors"}
    missing = [name for name in dir(consilience) if not name.startswith("_") and name not in modules]
    assert [name for name in missing if f"consilience.{name}" not in LISTED] == []


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_of_a_public_module_has_a_page(name):
    missing = {f"consilience.{name}.{one}" for one in names_of(getattr(consilience, name))} - LISTED
    assert {one for one in missing if not one.endswith("REQUEST_KINDS")} == set()


def test_every_error_and_warning_has_a_page():
    kinds = {
        name for name, one in vars(consilience.errors).items() if isinstance(one, type) and issubclass(one, Exception)
    }
    assert {name for name in kinds if not {f"consilience.errors.{name}", f"consilience.{name}"} & LISTED} == set()
