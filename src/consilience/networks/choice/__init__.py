"""The default fusion of networks: several candidates, and a choice among them without labels; see ``choose``."""
