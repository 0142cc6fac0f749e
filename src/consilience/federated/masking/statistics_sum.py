"""Statistics of estimators as a vector of sums: moments become raw moments about a planned centre, exactly.

Records of centred moments do not add up; the sums

    n,   W = sum w,   sum log w,   A = W (m - c) / u,   B = (S + W (m - c)(m - c)^T) / (u u^T)

about a centre c and in units u (powers of two) that all sites have from the expected file do. Raw moments lose digits
in floating point; here they are integers of 128 bits, computed from the float64 numbers of a record without rounding
but the last, and centred again in integers:

    m = c + u A / W,      S = (B - A A^T / W) u u^T.

So the sum is that of the sites' records to 2^-F units, and each of its numbers is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from consilience.checks import Array, Json
from consilience.core.details import Status
from consilience.core.provenance import make_provenance, result_record
from consilience.errors import InputError, UnsupportedError
from consilience.estimators.average import placed_counts
from consilience.estimators.details import EstimatorDetails
from consilience.estimators.files import read_statistics, statistics_problems
from consilience.estimators.fuse import match_classes
from consilience.estimators.fusion import EstimatorFusion
from consilience.estimators.kind import Estimators
from consilience.estimators.rebuild import rebuild
from consilience.estimators.statistics import OF_ALL, Statistics
from consilience.estimators.verdict import judge
from consilience.families.centred_moments import CentredMoments
from consilience.federated.check import mismatches
from consilience.federated.masking.fixed_point import Words, from_integers, scaled_integer, to_integers, unit_exponent
from consilience.federated.masking.summands import Summand, SumResult
from consilience.files.safetensors_file import SafetensorsFile

_EXACT_BITS = 256
"""Fractional bits of the integers in which records are worked on: every float64 of size 2^-203 and more is exact."""

_PLAIN_RANGE = (-20, 40)
"""Exponents of two between which sums take no unit: integers among them stay exact."""


def exact_integers(values: Array) -> list[int]:
    """Return numbers times 2^256 as integers, exact but below 2^-256."""
    mantissas, exponents = np.frexp(np.asarray(values, dtype=np.float64).ravel())
    digits = np.ldexp(mantissas, 53).astype(np.int64)
    return [
        scaled_integer(digit, exponent - 53 + _EXACT_BITS)
        for digit, exponent in zip(digits.tolist(), exponents.tolist(), strict=True)
    ]


@dataclass(frozen=True, eq=False)
class _MomentsLayout:
    """Where a record of moments is in the vector, and about which centre and in which units."""

    shape: tuple[int, ...]  # lengths of its leading axes
    is_diagonal: bool  # whether only sums of squares are known
    centre: Array  # (p,), c
    exponents: np.ndarray[Any, Any]  # (p,), of u, to the base two

    @classmethod
    def of(cls, record: CentredMoments) -> _MomentsLayout:
        """Return the layout of records like this one: centre and units are those of all its rows."""
        whole = record
        while whole.shape:
            whole = whole.total()
        variances = whole.variances / max(float(whole.weight), 1.0)
        # Of a column that does not vary in the expected file, its size says what unit it has.
        sizes = np.where(variances > 0.0, np.sqrt(np.maximum(variances, 0.0)), np.abs(whole.mean))
        exponents = np.array([unit_exponent(float(size)) for size in sizes], dtype=np.int64)
        return cls(record.shape, record.is_diagonal, whole.mean.copy(), exponents)

    @property
    def pairs(self) -> tuple[Any, Any]:
        """The columns whose products are summed."""
        p = len(self.centre)
        return (np.arange(p), np.arange(p)) if self.is_diagonal else np.triu_indices(p)

    @property
    def length(self) -> int:
        """Numbers of a record."""
        return prod(self.shape) * (3 + len(self.centre) + len(self.pairs[0]))

    def integers(self, record: CentredMoments, fractional_bits: int) -> Iterator[int]:
        """Yield the sums of a record, times 2^F."""
        p, (rows, columns) = len(self.centre), self.pairs
        exponents, bits = self.exponents.tolist(), fractional_bits - _EXACT_BITS
        centre = exact_integers(self.centre)
        scatter = record.scatter if self.is_diagonal else record.scatter[..., rows, columns]
        parts = [
            np.asarray(values).reshape(prod(self.shape), -1)
            for values in (record.n, record.weight, record.log_weight, record.mean, scatter)
        ]
        for n, weight, log_weight, mean, squares in zip(*parts, strict=True):
            for value in exact_integers(np.concatenate([n, weight, log_weight])):
                yield scaled_integer(value, bits)
            (w,) = exact_integers(weight)
            gaps = [m - c if w else 0 for m, c in zip(exact_integers(mean), centre, strict=True)]
            weighted = [w * gap for gap in gaps]  # 2 x 256 fractional bits
            for j in range(p):
                yield scaled_integer(weighted[j], bits - _EXACT_BITS - exponents[j])
            for j, k, square in zip(rows.tolist(), columns.tolist(), exact_integers(squares), strict=True):
                value = (square << (2 * _EXACT_BITS)) + weighted[j] * gaps[k]
                yield scaled_integer(value, bits - 2 * _EXACT_BITS - exponents[j] - exponents[k])

    def record(self, sums: Iterator[int], fractional_bits: int) -> CentredMoments:
        """Return the record of sums."""
        p, (rows, columns) = len(self.centre), self.pairs
        unit, exponents = 1 << fractional_bits, self.exponents.tolist()
        centre = [Fraction(float(value)) for value in self.centre]
        empty = CentredMoments.empty((prod(self.shape),), p, diagonal=self.is_diagonal)
        n, weight, log_weight, means, scatters = (
            getattr(empty, name).copy() for name in ("n", "weight", "log_weight", "mean", "scatter")
        )
        if not len(n):
            return empty
        n, weight, log_weight = (np.zeros(len(n)) for _ in range(3))
        for entry in range(len(n)):
            n[entry], weight_sum, log_sum = next(sums) / unit, next(sums), next(sums)
            weight[entry], log_weight[entry] = weight_sum / unit, log_sum / unit
            first = [next(sums) for _ in range(p)]
            second = [next(sums) for _ in range(len(rows))]
            if weight_sum <= 0:
                continue
            for j in range(p):
                step = Fraction(first[j], weight_sum) * Fraction(2) ** exponents[j]
                means[entry, j] = float(centre[j] + step)
            for j, k, square in zip(rows.tolist(), columns.tolist(), second, strict=True):
                value = (square * weight_sum - first[j] * first[k]) / (weight_sum * unit)  # of integers: rounded once
                value = float(np.ldexp(max(value, 0.0) if j == k else value, exponents[j] + exponents[k]))
                if self.is_diagonal:
                    scatters[entry, j] = value
                else:
                    scatters[entry, j, k] = scatters[entry, k, j] = value
        return CentredMoments(
            n.reshape(self.shape),
            weight.reshape(self.shape),
            log_weight.reshape(self.shape),
            means.reshape(*self.shape, p),
            scatters.reshape(*self.shape, *scatters.shape[1:]),
        )


class StatisticsSum(Summand):
    """Sums of estimators, whose fused estimator is the one that ``fit`` gives on the rows of all sites.

    `file` is the expected one: statistics of the same estimator with all classes, such as of a site, of public rows or
    of synthetic ones. Of its numbers only centres and units are used. Raises UnsupportedError for statistics with
    greatest values, which are no sums.
    """

    name: ClassVar[str] = "statistics"

    def __init__(self, file: SafetensorsFile) -> None:
        self.file = file
        self.expected = read_statistics(file)[0].without_fourth_moments()
        if self.expected.maxima:
            text = f"of a {self.expected.kind} greatest values are fused, which are no sums"
            raise UnsupportedError(str(file), text, "fuse it in an open round, or take an estimator without them")

    @cached_property
    def layouts(self) -> Mapping[str, _MomentsLayout]:
        """The layout of every record of moments, by name."""
        return {name: _MomentsLayout.of(record) for name, record in sorted(self.expected.moments.items())}

    @cached_property
    def count_exponents(self) -> Mapping[str, int]:
        """The unit of every array of sums, by name."""
        exponents = {}
        for name, values in sorted(self.expected.counts.items()):
            exponent = unit_exponent(float(np.abs(values).max(initial=0.0)))
            exponents[name] = 0 if _PLAIN_RANGE[0] <= exponent <= _PLAIN_RANGE[1] else exponent
        return exponents

    @property
    def length(self) -> int:
        """Number L of numbers: the last one is that of withheld classes."""
        n_counts = sum(values.size for values in self.expected.counts.values())
        return sum(layout.length for layout in self.layouts.values()) + n_counts + 1

    def words(self, source: Any, n_sites: int, fractional_bits: int) -> Words:
        """Return a site's sums in fixed point; see `Summand.words`."""
        file, *others = source
        if others:
            raise InputError(others[0], "accompanies networks, and these are sums; leave it out", code="E-ROUND")
        statistics = self._fitting(file)
        integers = [
            value
            for name, layout in self.layouts.items()
            for value in layout.integers(statistics.moments[name], fractional_bits)
        ]
        for name, exponent in self.count_exponents.items():
            bits = fractional_bits - _EXACT_BITS - exponent
            integers += [scaled_integer(value, bits) for value in exact_integers(statistics.counts[name])]
        integers.append(statistics.n_withheld << fractional_bits)
        try:
            return from_integers(integers, n_sites)
        except InputError as error:
            raise InputError(problem.about(file) for problem in error.problems) from error

    def _fitting(self, file: SafetensorsFile) -> Statistics:
        """Return a site's statistics with the classes and shapes of the expected ones."""
        kind, expected = Estimators(), self.expected
        if reasons := mismatches(
            {"this file": kind.site_facts(file, None).facets}, kind.site_facts(self.file, None).facets
        ):
            raise InputError(file, reasons["this file"], code="E-ROUND")
        statistics = read_statistics(file)[0].without_fourth_moments()
        unexpected = set(statistics.approximations) - set(expected.approximations)
        if unexpected:
            text = f"is no exact sum, which masked numbers cannot say: {sorted(unexpected)[0]}"
            remedy = "describe the model where its data are, or let the server expect such a file"
            raise InputError(file, text, remedy, "E-ROUND")
        for what in ("moments", "counts", "maxima"):
            if set(getattr(statistics, what)) != set(getattr(expected, what)):
                found, wanted = (", ".join(sorted(getattr(one, what))) or "none" for one in (statistics, expected))
                raise InputError(file, f"has the {what} {found}; the expected file has {wanted}", code="E-ROUND")
        statistics = self._with_expected_classes(file, statistics)
        counts = {
            name: _padded(file, name, values, expected.counts[name].shape) for name, values in statistics.counts.items()
        }
        for name, record in statistics.moments.items():
            wanted_record = expected.moments[name]
            if record.mean.shape != wanted_record.mean.shape or record.is_diagonal != wanted_record.is_diagonal:
                text = f"moments {name!r} have shape {record.mean.shape}, expected {wanted_record.mean.shape}"
                raise InputError(file, text)
        return replace(statistics, counts=counts)

    def _with_expected_classes(self, file: SafetensorsFile, statistics: Statistics) -> Statistics:
        """Return a site's sums by class in the places of the expected classes."""
        classes = self.expected.classes
        if classes is None or statistics.classes is None:
            return statistics
        if unknown := [name for name in statistics.classes.values if name not in classes.values]:
            text = f"has the class {unknown[0]!r}, which the expected file has not"
            raise InputError(file, text, "let the server expect a file with the classes of all sites")
        positions, n_classes = statistics.classes.positions_in(classes), len(classes)
        return replace(
            statistics,
            classes=classes,
            moments={
                name: record if name in OF_ALL else record.placed(positions, n_classes)
                for name, record in statistics.moments.items()
            },
            counts={
                name: values if name in OF_ALL else placed_counts(name, values, positions, n_classes)
                for name, values in statistics.counts.items()
            },
        )

    def result(self, words: Words, sites: Sequence[str], plan: Mapping[str, Json], fractional_bits: int) -> SumResult:
        """Return the fusion of the sums; see `Summand.result`."""
        sums, unit = iter(to_integers(words)), 1 << fractional_bits
        moments = {name: layout.record(sums, fractional_bits) for name, layout in self.layouts.items()}
        counts = {}
        for name, exponent in self.count_exponents.items():
            shape = self.expected.counts[name].shape
            values = [next(sums) / unit for _ in range(prod(shape))]
            counts[name] = np.ldexp(np.array(values).reshape(shape), exponent)
        fused = replace(self.expected, moments=moments, counts=counts, n_withheld=round(next(sums) / unit))
        if fused.classes is not None:
            fused = fused.some_classes(np.flatnonzero(fused.row_counts > 0))
        if problems := statistics_problems(fused):
            raise InputError(problem.about("the sum of all sites") for problem in problems)
        details: EstimatorDetails = {"n_sites": len(sites), "masked": dict(plan)}
        result = result_record(fused.n_components, Status.CONVERGED, details)
        records = [{"name": site, "components": fused.n_components} for site in sites]
        provenance = make_provenance("sums", {"masked": True}, None, records, result)
        matching = match_classes(fused, [("all sites", fused)])
        verdict = judge(fused, len(sites), details)
        return SumResult(
            EstimatorFusion(
                statistics=fused,
                matching=matching,
                details=details,
                provenance=provenance,
                _model=rebuild(fused),
                _verdict=verdict,
            ),
            {"n_observations": fused.n_observations},
        )

    def save(self, result: SumResult, path: Path) -> None:
        """Write the sums of all sites."""
        result.model.save(path)


def _padded(file: SafetensorsFile, name: str, values: Array, shape: tuple[int, ...]) -> Array:
    """Return sums with zeros at their ends: categories that a site never saw."""
    if len(values.shape) != len(shape) or any(a > b for a, b in zip(values.shape, shape, strict=True)):
        text = f"counts {name!r} have shape {values.shape}, and the expected file has {shape}"
        raise InputError(file, text, code="E-SHAPE")
    wide = np.zeros(shape)
    wide[tuple(slice(0, length) for length in values.shape)] = values
    return wide
