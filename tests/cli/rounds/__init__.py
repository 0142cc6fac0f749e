"""Commands of rounds as an operator and sites meet them."""
