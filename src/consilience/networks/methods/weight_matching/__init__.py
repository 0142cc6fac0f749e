"""Weight matching of any number of networks and widths: coordinate descent over assignment problems."""
