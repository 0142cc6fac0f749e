"""Where the map and the reduce of statistical methods run. Work is passed in, so nothing of ours is imported here."""
