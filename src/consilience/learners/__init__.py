"""Local learners that no well-kept library offers: what a site runs on its own data."""
