"""Files, of which nothing is trusted: arrays with one JSON document, tables, limits, remote paths, atomic writes."""
