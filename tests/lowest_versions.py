"""Print the lowest versions that pyproject.toml allows, as constraints for pip: ``python tests/lowest_versions.py``.

`make lowest` installs them into an environment of their own and runs the quick tests there.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
PINNED = PROJECT.with_name("constraints.txt")
UNTRIED = frozenset({"torch"})
"""Requirements whose lowest version nobody could try, since there was no build of it: they are taken as pinned."""
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)>=(?P<version>[^,;\s]+)(,<[^,;\s]+)?")


def lowest_versions(requirements: Iterable[str]) -> dict[str, str]:
    """Return the lowest version of each requirement by name; the project's own extras are left out.

    Parameters
    ----------
    requirements : iterable of str
        Requirements such as "numpy>=2.0" or "flwr>=1.41,<1.42".

    Raises
    ------
    ValueError
        For a requirement without a lower bound, and for one that has two different ones.
    """
    versions: dict[str, str] = {}
    for requirement in requirements:
        if requirement.startswith("consilience["):
            continue
        match = REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise ValueError(f"{requirement}: has no lower bound; write NAME>=VERSION")
        if versions.setdefault(match["name"], match["version"]) != match["version"]:
            raise ValueError(f"{match['name']}: has the lower bounds {versions[match['name']]} and {match['version']}")
    return versions


def project_requirements() -> list[str]:
    """Return all requirements of the library and of its extras."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    return [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]


def pinned_versions() -> dict[str, str]:
    """Return the versions of constraints.txt by name."""
    lines = PINNED.read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


if __name__ == "__main__":
    pinned = pinned_versions()
    for name, version in sorted(lowest_versions(project_requirements()).items()):
        sys.stdout.write(f"{name}=={pinned[name] if name in UNTRIED else version}\n")
