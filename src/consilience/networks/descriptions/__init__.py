"""Descriptions that sites send with their networks: see ``description``."""
