"""What a site says of a network beside its weights: see ``description``."""
