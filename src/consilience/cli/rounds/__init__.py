"""The commands ``consilience round ...``: servers of rounds, their sites, and who watches."""
