"""Exponential families: what a component is, how far two are apart, and what their average is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.errors import FileFormatError, InputError
from consilience.families.base import Direction, Family, FixedSide
from consilience.families.categorical import Categorical
from consilience.families.diagonal_gaussian import DiagonalGaussian
from consilience.families.dirichlet import Beta, Dirichlet
from consilience.families.evidence import EvidenceFamily
from consilience.families.gamma import Gamma
from consilience.families.gaussian import Gaussian, SphericalGaussian
from consilience.families.known_covariance_gaussian import KnownCovarianceGaussian
from consilience.families.normal_gamma import NormalGamma, SphericalNormalGamma
from consilience.families.normal_wishart import NormalWishart
from consilience.families.point import Point
from consilience.families.product import Product

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


_LARGEST = 2**31
"""Dimensions of a family at most: numbers in files may have any number of digits."""


def family_from_config(config: Mapping[str, Any]) -> Family:
    """Return the family that ``{"name": family.name, **family.config()}`` describes.

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
    kinds: dict[str, Any] = {kind.name: kind for kind in FAMILIES}
    if name not in kinds:
        raise FileFormatError(f"family {name!r} is not known to this version; known: {', '.join(sorted(kinds))}")
    try:
        if name == Product.name:
            return Product({key: family_from_config(block) for key, block in options["blocks"].items()})
        dim = options.get("dim", 1)
        if not isinstance(dim, int) or dim < 1:
            raise FileFormatError(f"family {name!r}: dim must be a positive integer, found {dim!r}")
        if dim > _LARGEST:
            raise FileFormatError(f"family {name!r}: dim must not exceed {_LARGEST}")
        family: Family = kinds[name](**options)
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
    "SphericalGaussian",
    "SphericalNormalGamma",
    "family_from_config",
]
