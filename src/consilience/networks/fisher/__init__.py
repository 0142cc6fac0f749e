"""Fisher information of a network: computed at a site, stored beside the network, read for merging."""
