"""Daily temperatures of stations in the United States as data of parties, one for each state.

Needs ``city_temps.npz`` in the folder ``CONSILIENCE_DATA`` (default ``../shared/data`` beside the repository).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DATA = Path(os.environ.get("CONSILIENCE_DATA", Path(__file__).parents[3] / "shared/data")) / "city_temps.npz"
FIRST_YEAR = 2015
NOT_A_STATE = "PR"
FEATURES = ("day", "month", "year", "latitude", "longitude", "elevation", "temperature the day before", "temperature")
SHIFT = (15.5, 6.5, 2017.0, 38.0, -93.0, 300.0, 55.0, 55.0)
SCALE = (9.0, 3.5, 1.25, 6.0, 15.0, 450.0, 20.0, 20.0)
"""Public constants: middle and half-width of the calendar, and round numbers for the country and its weather."""


@dataclass(frozen=True, eq=False)
class Temperatures:
    """One row for every station and day whose temperature, and that of the day before, are known.

    Parameters
    ----------
    X
        The seven features (n, 7), in days, months, years, degrees, metres and degrees Fahrenheit.
    y
        Temperature (n,), degrees Fahrenheit.
    party
        Number of the state of every row (n,).
    states
        Names of the states (J,).
    """

    X: np.ndarray
    y: np.ndarray
    party: np.ndarray
    states: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of a random split: for training, validation and test of every party, and test rows of the whole country."""

    train: tuple[np.ndarray, ...]
    validation: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    across: np.ndarray


def load_temperatures() -> Temperatures:
    """Return the rows of all states; a station's state are the first two letters of its code."""
    with np.load(DATA) as file:
        state = np.array([code[:2] for code in file["site"]])
        chosen = np.flatnonzero((file["country"] == "US") & (state != NOT_A_STATE))
        degrees = np.where(file["temp_f_x10"] == -32768, np.nan, file["temp_f_x10"] / 10.0)[chosen]
        place = np.column_stack([file[name][chosen].astype(np.float64) for name in ("lat", "lon", "elev_m")])
        state, date = state[chosen], np.datetime64("1970-01-01") + file["day"]
    month = date.astype("datetime64[M]")
    calendar = np.column_stack(
        [
            (date - month).astype(np.int64) + 1,
            month.astype(np.int64) % 12 + 1,
            date.astype("datetime64[Y]").astype(np.int64) + 1970,
        ]
    )
    late = np.flatnonzero(calendar[:, 2] >= FIRST_YEAR)
    station, number = np.nonzero(np.isfinite(degrees[:, late]) & np.isfinite(degrees[:, late - 1]))
    days = late[number]
    X = np.column_stack([calendar[days], place[station], degrees[station, days - 1]])
    states, party = np.unique(state[station], return_inverse=True)
    return Temperatures(X, degrees[station, days], party, tuple(states.tolist()))


def split(data: Temperatures, seed: int, train: int, validation: int, test: int, across: int) -> Split:
    """Return at most `train` training rows and exactly so many validation and test rows of every party."""
    rng = np.random.default_rng(seed)
    parts = [
        np.split(rng.permutation(np.flatnonzero(data.party == party)), [test, test + validation])
        for party in range(len(data.states))
    ]
    everywhere = rng.choice(np.concatenate([own for own, _, _ in parts]), across, replace=False)
    return Split(
        tuple(rest[:train] for _, _, rest in parts),
        tuple(middle for _, middle, _ in parts),
        tuple(own for own, _, _ in parts),
        everywhere,
    )
