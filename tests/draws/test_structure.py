"""Matrices, simplexes, constants and copies that draws show by themselves: combined as what they are, and so again."""

import ast
import json
import re
import warnings

import numpy as np
import pytest
from scipy import stats

import consilience as cs
from consilience.draws.constraint_table import STRUCTURES, as_constraint
from consilience.draws.structure import with_structures, with_tied_entries
from consilience.draws.tied_entries import TiedEntries
from tests.cli.running import command

SHAPES = {
    "cholesky_correlation": (3, 3),
    "cholesky_covariance": (2, 2, 2),
    "correlation": (2, 3, 3),
    "covariance": (2, 2),
    "simplex": (2, 3),
    "sum_to_zero": (4,),
}
every_structure = pytest.mark.parametrize("name", SHAPES)


def coordinates(name, seed, n=(2, 250)):
    """Gaussian draws of a structure's coordinates, with a mean and a covariance that are the seed's."""
    d = as_constraint(name, "x").n_coordinates(SHAPES[name])
    rng = np.random.default_rng(seed)
    mixing = 0.1 * rng.normal(size=(d, d)) + 0.2 * np.eye(d)
    return (
        0.3 * np.random.default_rng(99).normal(size=d) + 0.05 * rng.normal(size=d) + rng.normal(size=(*n, d)) @ mixing
    )


def values_of(name, u):
    flat = as_constraint(name, "x").constrain(u.reshape(-1, u.shape[-1]), SHAPES[name])
    return flat.reshape(*u.shape[:2], *SHAPES[name])


def site(name, seed, **told):
    rng = np.random.default_rng(seed)
    variables = {"x": values_of(name, coordinates(name, seed)), "mu": rng.normal(size=(2, 250))}
    return cs.Draws(variables, **{"prior": 1 / 2, **told})


def test_every_structure_has_a_specimen():
    assert {one.name for one in STRUCTURES} == set(SHAPES)


@every_structure
def test_a_structure_is_recognised_and_fused_as_the_product_of_gaussians_in_its_coordinates(name):
    u = [coordinates(name, seed) for seed in (0, 1, 2)]
    sites = [cs.Draws({"x": values_of(name, one)}, prior=1 / 3, jacobian="shared") for one in u]
    fused = cs.fuse(sites, "gaussian_product").draws
    assert fused.constraints["x"].name == name
    flat = [one.reshape(-1, one.shape[-1]) for one in u]
    precisions = [np.linalg.inv(np.cov(one.T)) for one in flat]
    covariance = np.linalg.inv(sum(precisions))
    mean = covariance @ sum(p @ one.mean(axis=0) for p, one in zip(precisions, flat, strict=True))
    got = fused.unconstrained.reshape(-1, len(mean))
    np.testing.assert_allclose(got.mean(axis=0), mean, atol=1e-8)
    np.testing.assert_allclose(np.cov(got.T), covariance, atol=1e-8)
    assert np.all(as_constraint(name, "x").is_inside(fused.variables["x"]))
    if name in ("covariance", "correlation"):
        np.testing.assert_array_equal(fused.variables["x"], np.swapaxes(fused.variables["x"], -1, -2))
    if name == "correlation":
        assert np.all(np.diagonal(fused.variables["x"], axis1=-2, axis2=-1) == 1.0)


@every_structure
@pytest.mark.parametrize("method", ["auto", "consensus_mc", "hierarchical", "semiparametric"])
def test_what_is_stated_and_what_is_recognised_are_fused_alike_by_every_method(name, method):
    options = {"sweeps": 50} if method == "semiparametric" else {}
    bare = cs.fuse([site(name, 0), site(name, 1)], method, rng=3, **options).draws
    stated = cs.fuse([site(name, 0, constraints={"x": name}), site(name, 1)], method, rng=3, **options).draws
    np.testing.assert_array_equal(bare.variables["x"], stated.variables["x"])
    assert np.all(as_constraint(name, "x").is_inside(bare.variables["x"]))


@pytest.mark.parametrize("factor", [False, True])
def test_the_posterior_of_a_correlation_is_the_one_that_is_known(factor):
    """Densities (1 + r)^a (1 - r)^b of three sites: their product is a Beta law of (1 + r) / 2."""
    powers = np.array([[30.0, 18.0], [26.0, 20.0], [40.0, 22.0]])
    rng, sites = np.random.default_rng(0), []
    for a, b in powers:
        r = 2 * rng.beta(a + 1, b + 1, size=(2, 4000)) - 1
        other = np.sqrt(1 - r**2) if factor else np.ones_like(r)
        matrix = np.stack([np.ones_like(r), np.zeros_like(r) if factor else r, r, other], axis=-1)
        sites.append(cs.Draws({"R": matrix.reshape(2, 4000, 2, 2)}, prior=1 / 3))
    fused = cs.fuse(sites).draws.variables["R"]
    expected = stats.beta(powers[:, 0].sum() + 1, powers[:, 1].sum() + 1, loc=-1, scale=2)
    assert abs(fused[..., 1, 0].mean() - expected.mean()) < 0.1 * expected.std()
    assert 0.95 < fused[..., 1, 0].std() / expected.std() < 1.05


def test_a_covariance_and_its_factor_and_what_they_were_fused_to_are_one():
    u = [coordinates("covariance", seed) for seed in (0, 1)]
    factors = [np.linalg.cholesky(values_of("covariance", one)) for one in u]
    told = {"prior": 1 / 2, "jacobian": "shared"}
    of_factor = cs.fuse([cs.Draws({"x": one}, **told) for one in factors], rng=0).draws.variables["x"]
    of_matrix = cs.fuse([cs.Draws({"x": values_of("covariance", one)}, **told) for one in u], rng=0).draws
    np.testing.assert_allclose(of_factor @ np.swapaxes(of_factor, -1, -2), of_matrix.variables["x"], rtol=1e-9)


@every_structure
def test_files_csv_and_inference_data_are_fused_as_dictionaries_are(name, tmp_path):
    az = pytest.importorskip("arviz")
    sites = {label: site(name, seed) for seed, label in enumerate(("lund", "oslo"))}
    expected = cs.fuse(sites, rng=0).draws.variables["x"]
    for label, draws in sites.items():
        cs.save(draws, tmp_path / f"{label}.safetensors")
        for chain in range(2):
            _write_csv(tmp_path / f"{label}_{chain + 1}.csv", {n: v[chain] for n, v in draws.variables.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        datas = {label: az.from_dict(posterior=dict(draws.variables)) for label, draws in sites.items()}
    assert np.array_equal(cs.fuse(sorted(tmp_path.glob("*.safetensors")), rng=0).draws.variables["x"], expected)
    of_data = cs.fuse(datas, prior=1 / 2, rng=0)
    assert np.array_equal(of_data.draws.variables["x"], expected)
    assert type(of_data.model).__name__ == "InferenceData"
    of_csv = cs.fuse(sorted(tmp_path.glob("*.csv")), prior=1 / 2, rng=0).draws
    np.testing.assert_allclose(of_csv.variables["x"], expected, atol=2e-4)  # six digits
    assert np.all(as_constraint(name, "x").is_inside(of_csv.variables["x"]))
    out = tmp_path / "fused.safetensors"
    assert command("fuse", *tmp_path.glob("*.csv"), "-o", out, "--set", "prior=0.5", "--seed", 0).code == 0
    assert cs.load(out).constraints["x"].name == name
    # What was fused is fused again with a site that states nothing.
    again = cs.fuse([cs.load(out), site(name, 7)]).draws
    assert again.constraints["x"].name == name


def _write_csv(path, variables):
    """Six digits, first index fastest, as CmdStan writes."""
    columns, cells = ["lp__"], [np.zeros(len(next(iter(variables.values()))))]
    for name, values in variables.items():
        for index in (i[::-1] for i in np.ndindex(values.shape[:0:-1])):
            columns.append(".".join([name, *(str(i + 1) for i in index)]))
            cells.append(values[(slice(None), *index)])
    rows = np.stack(cells, axis=1)
    lines = [",".join(columns), *(",".join(f"{value:.6g}" for value in row) for row in rows)]
    path.write_text("# method = sample (Default)\n" + "\n".join(lines) + "\n")


def test_constants_and_copies_are_carried_over_and_are_no_parameters():
    def draws(seed):
        rng = np.random.default_rng(seed)
        b, c, d, e, f, g = 0.1 * seed + rng.normal(size=(6, 2, 500))
        zero, one = np.zeros_like(b), np.ones_like(b)
        symmetric = np.stack([d, f, f, g], axis=-1).reshape(2, 500, 2, 2)  # not definite
        return cs.Draws(
            {
                "load": np.stack([one, zero, b, c], axis=-1).reshape(2, 500, 2, 2),
                "K": symmetric,
                "size": np.exp(np.stack([e, zero, e], axis=-1)),
                "n": 3 * one,
            },
            prior=1 / 2,
            constraints={"size": "positive"},
        )

    fusion = cs.fuse({"lund": draws(0), "oslo": draws(1)})
    got = fusion.draws
    load, kernel, size, number = (got.variables[name] for name in ("load", "K", "size", "n"))
    assert np.all(load[..., 0, 0] == 1.0)
    assert np.all(load[..., 0, 1] == 0.0)
    np.testing.assert_array_equal(kernel, np.swapaxes(kernel, -1, -2))
    assert np.all(size[..., 1] == 1.0)
    assert np.array_equal(size[..., 0], size[..., 2])
    assert np.all(size > 0)
    assert np.all(number == 3.0)
    assert fusion.details["constant_entries"] == ["load[0, 0]", "load[0, 1]", "size[1]", "n"]
    assert "2 subposteriors of 6 parameters (and 4 constants) combined by" in fusion.verdict.text
    # The tied entries are the product of the free ones alone.
    free = cs.fuse(
        [
            cs.Draws({"b": site.variables["load"][..., 1, 0], "c": site.variables["load"][..., 1, 1]}, prior=1 / 2)
            for site in (draws(0), draws(1))
        ],
        "gaussian_product",
    ).draws
    assert abs(load[..., 1, 0].mean() - free.variables["b"].mean()) < 0.1


def test_a_file_keeps_constants_and_a_wrong_statement_of_them_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    sites = [cs.Draws({"b": np.stack([rng.normal(size=(2, 300)), np.ones((2, 300))], -1)}, prior=0.5) for _ in "ab"]
    fused = cs.fuse(sites)
    cs.save(fused, tmp_path / "fused.safetensors")
    loaded = cs.load(tmp_path / "fused.safetensors")
    assert loaded.constant_names == ("b[1]",)
    assert json.dumps(loaded.constraints["b"].to_json()) == '["tied", "real", "entries", 0, -1, "constants", 1.0]'
    for wrong in (
        ["tied"],
        ["tied", "real", "entries", 0, -1],
        ["tied", "real", "entries", 0, -1, "constants"],
        ["tied", "real", "entries", 1, -1, "constants", 1.0],
        ["tied", "simplex", "entries", 0, -1, "constants", 1.0],
        ["tied", "real", "entries", 0, -2, "constants", 1.0],
        ["tied", "real", "entries", 0, True, "constants"],
        ["tied", "real", "entries", 0, -1, "constants", float("nan")],
        ["tied", "tied", "real", "entries", 0, "constants", "entries", 0, -1, "constants", 1.0],
    ):
        with pytest.raises(cs.errors.OptionError, match=r"constraints: of b: found \['tied'"):
            as_constraint(wrong, "b")
    with pytest.raises(cs.errors.InputError, match="which no tied has"):
        cs.Draws({"b": rng.normal(size=(2, 300, 3))}, constraints={"b": loaded.constraints["b"].to_json()})


def matrices(seed, change=None):
    rng = np.random.default_rng(seed)
    factor = np.zeros((2, 300, 2, 2))
    factor[..., 0, 0], factor[..., 1, 1] = np.exp(0.1 * rng.normal(size=(2, 2, 300)))
    factor[..., 1, 0] = rng.normal(size=(2, 300))
    if change is not None:
        factor[(..., *change[0])] = change[1]
    return cs.Draws({"L": factor, "mu": rng.normal(size=(2, 300))}, prior=1 / 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([None, ((0, 1), 0.5)], r"^oslo: has L\[0, 1\] = 0.5 in all draws, expected 0 as in lund; leave it out"),
        ([((1, 0), 0.0), None], r"^lund: has the same value in all draws of L\[1, 0\], unlike the other sites; leave"),
        ([None, ((1, 0), 0.25)], r"^oslo: has the same value in all draws of L\[1, 0\], unlike the other sites; leave"),
    ],
)
def test_constants_that_differ_between_sites_are_refused_and_the_remedy_works(changes, message):
    sites = {name: matrices(seed, changes[seed]) for seed, name in enumerate(("lund", "oslo"))}
    with pytest.raises(cs.errors.InputError, match=message) as caught:
        cs.fuse(sites)
    assert cs.check(sites) == list(caught.value.problems)
    (problem,) = caught.value.problems
    only = ast.literal_eval(re.search(r"`only=(.*)`", problem.remedy)[1])  # followed literally
    assert list(cs.fuse(sites, only=only).draws.variables) == ["mu"]


@pytest.mark.parametrize("factor", [False, True])
def test_a_correlation_among_covariances_is_refused_and_so_is_one_that_is_stated_to_be_a_covariance(factor):
    narrow, wide = ("cholesky_correlation", "cholesky_covariance") if factor else ("correlation", "covariance")
    values = as_constraint(narrow, "x").constrain(np.random.default_rng(0).normal(size=(600, 3)), (3, 3))
    values = values.reshape(2, 300, 3, 3)
    scale = np.exp(0.1 * np.random.default_rng(1).normal(size=(2, 300, 3)))
    covariance = values * scale[..., None] * (1.0 if factor else scale[..., None, :])
    lund, oslo = cs.Draws({"x": values}, prior=0.5), cs.Draws({"x": covariance}, prior=0.5)
    with pytest.raises(
        cs.errors.InputError, match=f"^oslo: x is a {wide}, expected a {narrow} as in lund; fit the same"
    ):
        cs.fuse({"lund": lund, "oslo": oslo})
    stated = {
        name: cs.Draws({"x": one}, prior=0.5, constraints={"x": wide})
        for name, one in (("lund", values), ("oslo", values[:, ::-1] + 0.0))
    }
    text = f"lund: x is a {narrow} in all draws, and is stated to be a {wide}; state `constraints={{'x': '{narrow}'}}`"
    with pytest.raises(cs.errors.InputError, match=re.escape(text)):
        cs.fuse(stated)


def test_values_outside_of_a_constraint_are_told_the_right_one_and_constants_may_be_outside():
    sites = [matrices(seed) for seed in (0, 1)]
    wrong = [cs.Draws(dict(one.variables), prior=0.5, constraints={"L": "positive"}) for one in sites]
    with pytest.raises(
        cs.errors.InputError, match=r"outside of its constraint.*mend `constraints=\{'L': 'cholesky_covariance'\}"
    ):
        cs.fuse(wrong)
    diagonal = [
        cs.Draws({"L": one.variables["L"] * np.eye(2)}, prior=0.5, constraints={"L": "positive"}) for one in sites
    ]
    fused = cs.fuse(diagonal).draws
    assert fused.constraints["L"].to_json()[:2] == ["tied", "positive"]
    assert np.all(fused.variables["L"][..., [0, 1], [1, 0]] == 0.0)


def test_copies_that_differ_between_sites_are_refused():
    rng = np.random.default_rng(0)
    free = rng.normal(size=(2, 300, 3))
    copied = rng.normal(size=(2, 300, 3))
    copied[..., 2] = copied[..., 0]
    with pytest.raises(cs.errors.InputError, match=r"^oslo: has other copies of entries in x than lund"):
        cs.fuse({"lund": cs.Draws({"x": free}, prior=0.5), "oslo": cs.Draws({"x": copied}, prior=0.5)})


def test_draws_of_nothing_but_constants_are_refused():
    with pytest.raises(cs.errors.InputError, match=r"^lund: has the same value in all draws of x\[0\], x\[1\]"):
        cs.fuse({name: cs.Draws({"x": np.ones((2, 300, 2))}, prior=0.5) for name in ("lund", "oslo")})


def test_a_stated_matrix_with_constant_coordinates_is_refused_and_the_remedy_works():
    def draws(seed, **told):
        rng = np.random.default_rng(seed)
        blocks = np.zeros((2, 300, 3, 3))
        blocks[..., range(3), range(3)] = np.exp(0.1 * rng.normal(size=(2, 300, 3)))
        blocks[..., 1, 0] = blocks[..., 0, 1] = 0.1 * rng.normal(size=(2, 300))
        return cs.Draws({"S": blocks}, prior=0.5, **told)

    stated = {name: draws(seed, constraints={"S": "covariance"}) for seed, name in enumerate(("lund", "oslo"))}
    remedy = r"state `constraints=\{'S': 'real'\}`"
    text = rf"lund: has the same value in all draws of chol S\[2, 0\], chol S\[2, 1\]; {remedy}"
    with pytest.raises(cs.errors.InputError, match=text):
        cs.fuse(stated)
    fused = cs.fuse([draws(seed, constraints={"S": "real"}) for seed in (0, 1)]).draws.variables["S"]
    assert np.all(fused[..., 2, :2] == 0.0)
    np.testing.assert_array_equal(fused, np.swapaxes(fused, -1, -2))


def test_entries_of_one_variable_that_follow_from_others_are_told_what_can_be_done():
    def draws(seed, key):
        x = np.random.default_rng(seed).normal(size=(2, 300, 3))
        x[..., 2] = x[..., 0] + 2 * x[..., 1]
        return cs.Draws({"x": x} if key is None else {"x0": x[..., 0], "x1": x[..., 1]}, prior=0.5)

    with pytest.raises(
        cs.errors.InputError, match=r"give the entries of x that are parameters as variables of their own"
    ):
        cs.fuse([draws(0, None), draws(1, None)])
    assert cs.fuse([draws(0, "own"), draws(1, "own")]).draws.n_coordinates == 2


@every_structure
def test_laws_of_single_entries_are_refused_for_what_is_recognised(name):
    sites = {label: site(name, seed, prior={"x": ("normal", 0, 1), "mu": "flat"}) for seed, label in enumerate("ab")}
    remedy = "raise the prior to 1/J at the sites and state `prior=1/J`"
    text = f"^a: prior of x: cannot be divided out: x is a {name}; {remedy}"
    with pytest.raises(cs.errors.InputError, match=text):
        cs.fuse(sites)
    flat = [site(name, seed, prior={"x": "flat", "mu": "flat"}) for seed in (0, 1)]
    assert cs.fuse(flat).draws.constraints["x"].name == name


def test_factors_of_components_are_relabelled_and_stay_factors():
    def draws(seed):
        rng = np.random.default_rng(seed)
        mu = np.array([-3.0, 0.0, 4.0]) + 0.2 * rng.normal(size=(2, 400, 3))
        factor = np.zeros((2, 400, 3, 2, 2))
        factor[..., 0, 0], factor[..., 1, 1] = np.exp(0.1 * rng.normal(size=(2, 2, 400, 3)))
        factor[..., 1, 0] = 0.1 * rng.normal(size=(2, 400, 3))
        order = rng.permuted(np.tile(np.arange(3), (2, 400, 1)), axis=2)
        factor = np.take_along_axis(factor, order[..., None, None], axis=2)
        return cs.Draws({"mu": np.take_along_axis(mu, order, axis=2), "L": factor}, prior=0.5, exchangeable=("mu", "L"))

    fused = cs.fuse([draws(0), draws(1)]).draws
    assert fused.constraints["L"].name == "cholesky_covariance"
    np.testing.assert_allclose(np.sort(fused.variables["mu"].mean(axis=(0, 1))), [-3, 0, 4], atol=0.1)
    assert np.all(fused.variables["L"][..., 0, 1] == 0.0)


@pytest.mark.parametrize("scale", [1e-8, 1e6])
def test_covariances_of_any_units_are_recognised(scale):
    units = np.array([1.0, scale])
    sites = [
        cs.Draws({"x": values_of("covariance", coordinates("covariance", seed)) * np.outer(units, units)}, prior=0.5)
        for seed in (0, 1)
    ]
    plain = [cs.Draws({"x": values_of("covariance", coordinates("covariance", seed))}, prior=0.5) for seed in (0, 1)]
    fused, expected = (cs.fuse(own, "gaussian_product").draws for own in (sites, plain))
    assert fused.constraints["x"].name == "covariance"
    np.testing.assert_allclose(fused.variables["x"] / np.outer(units, units), expected.variables["x"], rtol=1e-6)


def test_what_is_of_no_structure_stays_real():
    rng = np.random.default_rng(0)
    for values in (
        rng.normal(size=(2, 300, 2, 2)),
        np.sort(rng.normal(size=(2, 300, 3)), axis=-1),
        rng.dirichlet(np.ones(3), size=(2, 300)) + 1e-3,
    ):
        sites = [cs.Draws({"x": values}, prior=0.5), cs.Draws({"x": values + 0.1}, prior=0.5)]
        recognised, problems = with_structures(sites, ("a", "b"))
        assert not problems
        assert [one.constraints["x"].name for one in recognised] == ["real", "real"]
        tied, problems = with_tied_entries(sites, ("a", "b"))
        assert not problems
        assert not isinstance(tied[0].constraints["x"], TiedEntries)


def test_log_densities_are_asked_of_whole_matrices():
    """A site's function gets factors with their zeros, and constants, as its model has them."""
    rows = np.random.default_rng(0).normal(size=(40, 2))
    seen = []

    def log_density(draws, rows):
        seen.append(draws)
        return -0.5 * ((draws["mu"] - 0.1) ** 2 + (draws["L"][:, 1, 0] - 0.2) ** 2) - np.log(draws["L"][:, 0, 0]) ** 2

    def draws(seed):
        own = matrices(seed)
        return cs.Draws({**own.variables, "n": np.full((2, 300), 7.0)}, prior=0.5)

    fusion = cs.fuse({"lund": draws(0), "oslo": draws(1)})
    exact = cs.federated.exchange("density", fusion, {"lund": rows, "oslo": rows}, rounds=1, module=log_density)
    assert seen[0]["L"].shape[1:] == (2, 2)
    assert np.all(seen[0]["L"][:, 0, 1] == 0.0)
    assert np.all(seen[0]["n"] == 7.0)
    assert exact.draws.constraints["L"].name == "cholesky_covariance"
