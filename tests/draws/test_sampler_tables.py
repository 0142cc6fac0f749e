"""Draws in tables and in netCDF, coordinates in another order, and variables that are discrete."""

import arviz
import numpy as np
import pandas as pd
import polars as pl
import pytest

import consilience as cs


def table(seed, chains=2, length=150):
    rng = np.random.default_rng(seed)
    n = chains * length
    return pd.DataFrame(
        {
            ".chain": np.repeat(np.arange(chains) + 1, length),
            ".iteration": np.tile(np.arange(length) + 1, chains),
            ".draw": np.arange(n) + 1,
            "mu": rng.normal(size=n),
            "beta[1]": rng.normal(1.0, 1.0, n),
            "beta[2]": rng.normal(2.0, 1.0, n),
            "M[1,2]": rng.normal(12.0, 1.0, n),
            "M[1,1]": rng.normal(11.0, 1.0, n),
            "lp__": np.zeros(n),
        }
    )


@pytest.mark.parametrize("as_table", [lambda frame: frame, pl.from_pandas, lambda frame: frame.sample(frac=1.0)])
def test_a_table_of_draws_has_its_arrays(as_table):
    frame = table(0)
    draws = cs.Draws(as_table(frame), prior=0.5)
    assert {name: values.shape for name, values in draws.variables.items()} == {
        "mu": (2, 150), "beta": (2, 150, 2), "M": (2, 150, 1, 2),
    }  # fmt: skip
    np.testing.assert_allclose(draws.variables["M"].mean(axis=(0, 1)), [[11.0, 12.0]], atol=0.3)
    np.testing.assert_allclose(np.sort(draws.variables["mu"][1]), np.sort(frame.mu[150:]))


def test_tables_are_draws_where_their_prior_is_stated():
    fusion = cs.fuse({"lund": table(0), "oslo": table(1)}, prior=1 / 2)
    assert fusion.draws.variables["beta"].shape[-1] == 2
    with pytest.raises(cs.errors.InputError, match=r"each is data .*`consilience.Draws\(table, prior="):
        cs.fuse([table(0), table(1)])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda frame: frame.assign(name="x"), "has the columns name, which are no numbers"),
        (lambda frame: frame[10:], r"has chains of \[140, 150\] draws"),
        (lambda frame: frame.drop(columns="beta[1]"), "lacks columns of beta: its indices do not fill an array"),
    ],
)
def test_other_tables_are_refused(change, text):
    with pytest.raises(cs.errors.InputError, match=text):
        cs.Draws(change(table(0)), prior=0.5)


def test_netcdf_is_read_by_path_pattern_and_name(tmp_path):
    for seed, name in enumerate(("lund", "oslo")):
        values = np.random.default_rng(seed).normal(size=(2, 150))
        arviz.from_dict(posterior={"mu": values}).to_netcdf(str(tmp_path / f"{name}.nc"))
    paths = [tmp_path / "lund.nc", tmp_path / "oslo.nc"]
    for models in (paths, str(tmp_path / "*.nc"), {"lund": paths[0], "oslo": str(paths[1])}):
        fusion = cs.fuse(models, prior=1 / 2)
        assert fusion.site_names == ("lund", "oslo")
    (tmp_path / "bad.nc").write_bytes(b"no netCDF")
    with pytest.raises(cs.errors.FileFormatError, match=r"bad\.nc: is no netCDF file that arviz.from_netcdf reads"):
        cs.fuse([*paths, tmp_path / "bad.nc"], prior=1 / 2)


def labelled(seed, labels, **options):
    rng = np.random.default_rng(seed)
    columns = {name: rng.normal(3.0 * place, 1.0, (2, 200)) for place, name in enumerate("xyz")}
    values = np.stack([columns[name] for name in labels], axis=-1)
    return cs.Draws({"beta": values}, prior=0.5, dims={"beta": ("k",)}, coords={"k": list(labels)}, **options)


def test_coordinates_in_another_order_are_aligned_by_label():
    straight = cs.fuse({"lund": labelled(0, "xyz"), "oslo": labelled(1, "xyz")})
    turned = cs.fuse({"lund": labelled(0, "xyz"), "oslo": labelled(1, "zxy")})
    np.testing.assert_array_equal(straight.draws.variables["beta"], turned.draws.variables["beta"])
    assert turned.notes == ("oslo has its coordinates in another order: aligned by name",)
    assert turned.notes[0] in turned.summary()


@pytest.mark.parametrize("labels", ["xyy", "xyw"])
def test_other_labels_are_refused(labels):
    other = cs.Draws(
        {"beta": np.random.default_rng(0).normal(size=(2, 200, 3))},
        prior=0.5, dims={"beta": ("k",)}, coords={"k": list(labels)},
    )  # fmt: skip
    with pytest.raises(cs.errors.InputError, match="oslo: labels k"):
        cs.fuse({"lund": labelled(0, "xyz"), "oslo": other})


@pytest.mark.parametrize(
    "values",
    [
        lambda rng: rng.poisson(20, (2, 200)),
        lambda rng: rng.integers(0, 4, (2, 200)),
        lambda rng: rng.random((2, 200)) < 0.3,
        lambda rng: rng.poisson(200, (2, 200)).astype(float),
    ],
)
def test_a_discrete_variable_is_refused_by_name_and_may_be_left_out(values):
    def site(seed):
        rng = np.random.default_rng(seed)
        return cs.Draws({"k": values(rng), "mu": rng.normal(size=(2, 200))}, prior=0.5)

    sites = {"lund": site(0), "oslo": site(1)}
    with pytest.raises(cs.errors.InputError, match=r"lund: k: is discrete: whole numbers .*`only=\['mu'\]`"):
        cs.fuse(sites)
    assert list(cs.fuse(sites, only=["mu"]).draws.variables) == ["mu"]


def test_a_constant_that_is_a_whole_number_is_no_discrete_variable():
    rng = np.random.default_rng(0)
    sites = [cs.Draws({"n": np.full((2, 200), 3.0), "mu": rng.normal(size=(2, 200))}, prior=0.5) for _ in range(2)]
    assert "n" in cs.fuse(sites).draws.variables


def test_files_that_are_chains_of_one_site_are_said_to_be(tmp_path):
    head = "# method = sample (Default)\nlp__,mu\n"
    for number in (1, 2, 3):
        rows = np.random.default_rng(number).normal(size=100)
        (tmp_path / f"site_{number}.csv").write_text(head + "\n".join(f"-1,{value:.6g}" for value in rows) + "\n")
    paths = sorted(tmp_path.glob("*.csv"))
    with pytest.raises(
        cs.errors.InputError, match=r"3 files whose names differ in a number .* chains of one site, site"
    ):
        cs.fuse(paths, prior=1 / 3)
    fusion = cs.fuse({path.stem: path for path in paths}, prior=1 / 3)
    assert len(fusion.inputs) == 3


def test_inspect_reads_a_chain_of_cmdstan(tmp_path, capsys):
    from consilience.api.kinds import inspect_file

    path = tmp_path / "lund_1.csv"
    rows = np.random.default_rng(0).normal(size=(100, 2))
    path.write_text("# method = sample (Default)\nlp__,mu,beta.1\n" + "\n".join(f"-1,{a},{b}" for a, b in rows) + "\n")
    inspection = inspect_file(path)
    assert dict(inspection.rows)["draws"] == "100 after warm-up, in 1 chain"
    assert inspection.document["shapes"] == {"mu": [1, 100], "beta": [1, 100, 1]}


@pytest.mark.parametrize("first", [0, 1])
def test_entries_of_arrays_are_counted_from_zero_or_one(first):
    values = np.random.default_rng(0).normal(size=(50, 4))
    names = [f"beta[{first + row},{first + column}]" for row in range(2) for column in range(2)]
    found = cs.Draws(pd.DataFrame(values, columns=names), prior=0.5)
    np.testing.assert_array_equal(found.variables["beta"], values.reshape(1, 50, 2, 2))
    with pytest.raises(cs.errors.InputError, match="lacks columns of beta"):
        cs.Draws(pd.DataFrame(values[:, :3], columns=names[:3]), prior=0.5)


def test_chains_may_be_in_the_index():
    index = pd.MultiIndex.from_product([range(3), range(20)], names=["chain", "draw"])
    table = pd.DataFrame({"mu": np.arange(60.0)}, index=index)
    assert cs.Draws(table, prior=0.5).variables["mu"].shape == (3, 20)
