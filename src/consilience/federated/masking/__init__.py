"""Masked sums: sums over sites of which the server sees no summand (Bonawitz and others, 2017)."""
