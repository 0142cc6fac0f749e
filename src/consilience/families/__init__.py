"""Exponential families of model components: natural parameters, Kullback-Leibler divergences and barycenters.

``FAMILIES`` lists them all; ``family_from_config`` makes one from what a file says. ``base`` states the mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.errors import FileFormatError, InputError
from consilience.families.base import Direction, Family, FixedSide
from consilience.families.categorical import Categorical
from consilience.families.dirichlet import Beta, Dirichlet
from consilience.families.evidence import EvidenceFamily
from consilience.families.gamma import Gamma
from consilience.families.gaussian import DiagonalGaussian, Gaussian, SphericalGaussian
from consilience.families.normal_gamma import NormalGamma, SphericalNormalGamma
from consilience.families.normal_wishart import NormalWishart
from consilience.families.point import KnownCovarianceGaussian, Point
from consilience.families.product import Product
from consilience.families.random_effects import RandomEffectsFamily

FAMILIES: tuple[type[Family], ...] = (
    Gaussian,
    DiagonalGaussian,
    SphericalGaussian,
    KnownCovarianceGaussian,
    NormalWishart,
    NormalGamma,
    SphericalNormalGamma,
    Dirichlet,
    Beta,
    Gamma,
    Categorical,
    Point,
    Product,
)
"""Every family; a new one is one file and one line here."""


_MAX_DIM = 2**31
"""Dimensions of a family at most: numbers in files may have any number of digits. A bound that is not reached."""


def family_from_config(config: Mapping[str, Any]) -> Family:
    """Return the family that ``{"name": family.name, **family.config()}`` describes.

    Parameters
    ----------
    config : mapping of str to JSON values
        The name of the family and the arguments of its constructor.

    Raises
    ------
    FileFormatError
        For a name that this version does not know, or a configuration that its family does not take.

    Examples
    --------
    >>> family_from_config({"name": "normal-wishart", "dim": 2})
    NormalWishart(dim=2)
    """
    options = dict(config)
    name = options.pop("name", None)
    family_classes: dict[str, Any] = {family_class.name: family_class for family_class in FAMILIES}
    if name not in family_classes:
        known_names = ", ".join(sorted(family_classes))
        raise FileFormatError(f"family {name!r} is not known to this version; known: {known_names}")
    try:
        if name == Product.name:
            return Product({key: family_from_config(block) for key, block in options["blocks"].items()})
        dim = options.get("dim", 1)
        if not isinstance(dim, int) or dim < 1:
            raise FileFormatError(f"family {name!r}: dim must be a positive integer, found {dim!r}")
        if dim > _MAX_DIM:
            raise FileFormatError(f"family {name!r}: dim must not exceed {_MAX_DIM}")
        family: Family = family_classes[name](**options)
    except FileFormatError:
        raise
    except (TypeError, KeyError, AttributeError, InputError) as error:
        raise FileFormatError(f"family {name!r} with configuration {options} cannot be made: {error}") from error
    return family


__all__ = [
    "FAMILIES",
    "Beta",
    "Categorical",
    "DiagonalGaussian",
    "Direction",
    "Dirichlet",
    "EvidenceFamily",
    "Family",
    "FixedSide",
    "Gamma",
    "Gaussian",
    "KnownCovarianceGaussian",
    "NormalGamma",
    "NormalWishart",
    "Point",
    "Product",
    "RandomEffectsFamily",
    "SphericalGaussian",
    "SphericalNormalGamma",
    "family_from_config",
]
