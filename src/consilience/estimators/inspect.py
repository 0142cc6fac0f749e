"""Inspection of statistics files: what is inside, from the header, and what the sums tell about people."""

from __future__ import annotations

import math
import sys

from consilience.checks import Json
from consilience.core.features import Features
from consilience.core.inspection import PEOPLE, Row, listed, plain_words, provenance_rows
from consilience.core.kind import Inspection
from consilience.core.min_count import MIN_COUNT
from consilience.estimators.adapters.heads import FEATURES
from consilience.estimators.adapters.table import adapter_of_kind
from consilience.estimators.design import Design, design_in_words
from consilience.estimators.files import StatisticsHeader, read_header, read_statistics
from consilience.estimators.heads.feature_maps import parsed_record
from consilience.estimators.inference import column_names
from consilience.estimators.rare_columns import MAX_COMPARED, rare_in_sums
from consilience.estimators.rare_columns import listed as listed_columns
from consilience.files.safetensors_file import SafetensorsFile


def inspect_statistics(file: SafetensorsFile) -> Inspection:
    """Return what a statistics file says of itself, and what it tells about people."""
    header, tensors = read_header(file)
    shapes = {name: list(shape) for name, shape in tensors.shapes.items()}
    document: dict[str, Json] = {"header": header.model_dump(), "shapes": shapes}
    n_bytes = 8 * sum(math.prod(shape) for shape in shapes.values())
    rows: list[Row] = [
        ("file", str(file)),
        ("format", f"{header.format} {header.format_version} (consilience {header.library_version})"),
        *_estimator_rows(header),
        ("tensors", listed([f"{name} {shape}" for name, shape in sorted(shapes.items())])),
        ("size", f"{n_bytes:,} bytes of sums, however many rows"),
        *(("approximate", text) for text in header.approximations),
    ]
    rare = _rare_columns(file, header)
    made = header.provenance is not None
    if header.provenance is not None:
        rows += provenance_rows(header.provenance.model_dump())
    fitted = f"a {header.estimator}" if header.last_step is None else f"a Pipeline that ends in a {header.last_step}"
    whose = "a file with the fused sums of all sites" if made else "a file with the sums of a site"
    plain = plain_words(
        f"{whose}, from which {fitted} is fitted as from all rows",
        _rows_of_all(header),
        f"sums of the same estimator, its hyper-parameters and the same {header.n_columns} columns, of other rows",
        made,
    )
    return Inspection(document, [*rows, *people_rows(header, set(shapes)), *rare], plain)


def _rare_columns(file: SafetensorsFile, header: StatisticsHeader) -> list[Row]:
    """Return which columns of 0 and 1 give single rows away, found as whoever has the file can."""
    if header.n_columns > MAX_COMPARED:
        return []
    statistics = read_statistics(file)[0]
    records = [one for one in statistics.moments.values() if not one.is_diagonal]
    min_count = header.min_count or MIN_COUNT
    found = [rare for one in records for rare in rare_in_sums(one, header.n_columns, min_count)]
    if not found:
        return []
    names = listed_columns(found, column_names(statistics), statistics.classes)
    return [("rare columns", f"{names}: set fewer than {min_count:g} rows apart, whose sum the products give")]


def _estimator_rows(header: StatisticsHeader) -> list[Row]:
    """Return what a file says of the estimator and of its columns."""
    rows: list[Row] = [
        ("estimator", f"{header.estimator} (scikit-learn {header.versions.get('scikit-learn')})"),
        ("parameters", listed([f"{name}={value!r}" for name, value in header.parameters.items() if name != FEATURES])),
    ]
    if FEATURES in header.parameters:
        stated = parsed_record(header.parameters[FEATURES])
        rows.append(("features", f"{stated['name']} ({stated['kind']}, digest {stated['digest'][:12]})"))
    if header.last_step is not None:
        steps = [f"{step.name}: {step.estimator}" for step in header.steps]
        rows.append(("pipeline", listed([*steps, header.last_step])))
    names = header.features.names
    rows.append(("columns", f"{header.n_columns}" + ("" if names is None else f": {listed(names)}")))
    rows += [("categories", text) for text in Features(categories=header.features.categories).categories_in_words()]
    rows += design_in_words(Design.from_json(header.design.model_dump()))
    if header.classes is not None:
        rows.append(("classes", f"{len(header.classes)}: {listed([str(label) for label in header.classes])}"))
    if header.target_shape is not None:
        rows.append(("targets", str(header.n_targets)))
    return rows


def _rows_of_all(header: StatisticsHeader) -> float | None:
    """Return the rows of all sites, which the record of a fusion states by site; None of a site's own file."""
    weights = [] if header.provenance is None else [one.get("weight") for one in header.provenance.inputs]
    most = sys.float_info.max / max(len(weights), 1)  # JSON has integers of any size
    rows = [weight for weight in weights if isinstance(weight, int | float) and 0 <= weight <= most]
    return float(sum(rows)) if rows and len(rows) == len(weights) else None


def people_rows(header: StatisticsHeader, tensors: set[str]) -> list[Row]:
    """Return what sums tell about people, in plain words."""
    of = "of each class" if header.classes is not None else "of the site"
    pairs = "how columns vary together; of fewer rows than columns, the space that the rows span"
    about_zero = "of a column that is not zero for one row alone, that whole row: S + n m m^T"
    targets = "mean and variance of what is predicted, and how it varies with each column"
    by_column = f"the sum of every column {of}: what one row alone has, is one person's"
    constants = "means and deviations of columns in a formula; digests of knots and bounds"
    fourth = f"the mean of the fourth power of the distance to the mean row {of}"
    information = "weighted products of columns; of fewer rows than columns, the space of the rows"
    differences = "two files that differ by one person give that person's row; by one site, its sums: send one"
    of_features = "how features vary together over all classes; of fewer rows than features, their space"
    has_extremes = any(name.startswith("maxima.") for name in tensors - {"maxima.categories"})
    tells = [
        (True, "counts", f"how many rows {of} there are"),
        ("moments.rows.mean" in tensors, "means", f"the mean row {of}: of images, a picture; of one row, that row"),
        ("moments.rows.scatter" in tensors, "products", pairs),
        ("moments.rows.scatter" in tensors, "products about zero", about_zero),
        ("moments.rows.variances" in tensors, "variances", "how much each column varies"),
        (header.target_shape is not None, "targets", targets),
        ("counts.features" in tensors, "counts by column", by_column),
        (bool(header.design.constants), "constants", constants),
        ("counts.fourth" in tensors, "fourth moments", fourth),
        ("counts.information" in tensors, "information", information),
        (has_extremes, "extremes", "the least or the greatest value of every column, each one person's"),
        (True, "differences", differences),
        ("moments.total.scatter" in tensors, "products", of_features),
        ("counts.sums" in tensors, "sums by class", "the mean features of each class: of one row, that row"),
    ]
    adapter = adapter_of_kind(header.estimator)
    unit = "classes" if adapter.needs == "classes" else "sites"
    kept = f"{unit} of fewer than {header.min_count:g} rows are withheld" if header.min_count else "nothing is withheld"
    has_noise = "counts.noise" in tensors
    noise = "; ".join(header.approximations) if has_noise else "no noise is added, so no formal privacy is given"
    told = [(what, text) for is_told, what, text in tells if is_told]
    return [(PEOPLE, ""), *told, ("protection", f"{kept}; {noise}")]
