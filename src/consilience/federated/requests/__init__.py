"""Requests that follow the first message of a round: their kinds, their files, and what sites answer."""
