"""Inputs made up from what sites say of their networks: draws from moments, dead leaves, matched images."""
