"""The evidence of matchings: how many components there are, who is who, and how much copies differ between sites."""
