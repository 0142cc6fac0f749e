"""What ``pytest --quick`` runs: all tests of what changed and of the rooms above it, and one law of every other file.

What changed is the difference from the merge base with origin/main, or main, that is not committed included. Rooms
above are those that the walls of ``pyproject.toml`` allow to import a changed one. Of every other file the first case
of its first law is run, so that a clean clone is through within a minute.
"""

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAWS_OF_A_FILE = 1
"""Laws of a file that are run elsewhere: 1 takes 45 s of processor time beside collection, 2 take 71, all 336."""


def layers():
    """Return the rooms of the library by layer, the highest first."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = document["tool"]["importlinter"]["contracts"][0]
    return [{room.strip() for room in layer.replace(":", "|").split("|")} for layer in contract["layers"]]


def room_of(path):
    """Return the room that a file is of, source or test; None for what lies in no room.

    Examples
    --------
    >>> [room_of(path) for path in ("src/consilience/networks/fuse.py", "src/consilience/errors.py", "tests/core/a.py")]
    ['networks', 'errors', 'core']
    >>> [room_of(path) for path in ("tests/tolerances.py", "docs/index.md")]
    [None, None]
    """
    match Path(path).parts:
        case ["src", "consilience", room, *_]:
            return room.removesuffix(".py")
        case ["tests", room, _, *_]:
            return room
    return None


def changed_files():
    """Return the files that differ from the merge base, tracked or not; none where there is no repository."""

    def git(*words):
        command = ["git", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.split("\n") if done.returncode == 0 else []

    bases = (base for name in ("origin/main", "main") for base in git("merge-base", "HEAD", name) if base)
    changed = [*git("diff", "--name-only", next(bases, "HEAD")), *git("ls-files", "--others", "--exclude-standard")]
    return [path for path in changed if path]


def rooms_to_test(paths, layers_of_rooms):
    """Return the rooms of changed files, and those above a room whose sources changed."""
    rooms = {room for path in paths if (room := room_of(path)) is not None}
    sources = {room_of(path) for path in paths if path.startswith("src/")}
    for place, layer in enumerate(layers_of_rooms):
        if layer & sources:
            rooms |= set().union(*layers_of_rooms[:place])
    return rooms


def quick_cases(cases, rooms):
    """Return which of the cases are run: pairs of a path and a node's name, in the order of collection."""
    laws, is_run = {}, []
    for path, name in cases:
        law = name.partition("[")[0]
        of_file = laws.setdefault(path, [])
        is_new = law not in of_file
        if is_new:
            of_file.append(law)
        is_run.append(room_of(path) in rooms or (is_new and len(of_file) <= LAWS_OF_A_FILE))
    return is_run


def split_items(items):
    """Return the items that ``--quick`` runs, and all others."""
    quick = [item for item in items if item.get_closest_marker("slow") is None]
    cases = [(str(item.path.relative_to(ROOT)), item.nodeid.rpartition("::")[2]) for item in quick]
    is_run = quick_cases(cases, rooms_to_test(changed_files(), layers()))
    chosen = {id(item) for item, run in zip(quick, is_run, strict=True) if run}
    return [item for item in items if id(item) in chosen], [item for item in items if id(item) not in chosen]
