"""Weight matching of any number of networks and widths, by coordinate descent over assignments."""
