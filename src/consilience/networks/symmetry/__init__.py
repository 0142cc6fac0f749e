"""Which axes of a network's arrays move together, and how units are moved."""
