"""Fisher information of a network: computed at a site, kept in a file beside the network, read for merging."""
