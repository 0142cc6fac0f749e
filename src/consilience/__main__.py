"""``python -m consilience``: the same as the command."""

from consilience.cli import main

main()
