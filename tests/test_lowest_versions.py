"""The bounds of pyproject.toml: each requirement has a lowest version, and what `make` installs is no older."""

import tomllib

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.lowest_versions import PROJECT, UNTRIED, lowest_versions, pinned_versions, project_requirements

EXTRAS = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]


def test_pinned_versions_are_no_older_than_the_lowest():
    pinned = {canonicalize_name(name): Version(version) for name, version in pinned_versions().items()}
    lowest = lowest_versions(project_requirements())
    too_old = [name for name, version in lowest.items() if pinned[canonicalize_name(name)] < Version(version)]
    assert not too_old


def test_the_extra_all_names_every_extra_but_that_of_developers():
    runtime = sorted(set(EXTRAS) - {"all", "dev"})
    assert EXTRAS["all"] == [f"consilience[{','.join(runtime)}]"]


@pytest.mark.parametrize("requirements", [["numpy"], ["numpy==2.0"], ["torch>=2.5", "torch>=2.13"]])
def test_requirements_without_one_lower_bound_are_refused(requirements):
    with pytest.raises(ValueError, match="lower bound"):
        lowest_versions(requirements)


def test_upper_bounds_are_left_to_pip():
    assert lowest_versions(["flwr>=1.41,<1.42", "consilience[all]"]) == {"flwr": "1.41"}


def test_what_could_not_be_tried_is_pinned():
    assert set(pinned_versions()) >= UNTRIED
