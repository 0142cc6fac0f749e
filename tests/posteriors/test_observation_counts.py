"""How many observations are behind a model: recorded, counted, stated, or asked for; never guessed."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.cluster import KMeans
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

import consilience as cs
from tests.copies import COPIES
from tests.posteriors.hmmlearn_sites import by_hand
from tests.tolerances import ROUNDING

RNG = np.random.default_rng(0)
CENTRES = np.array([[0.0, 0.0], [9.0, 0.0]])
ROWS = [np.concatenate([centre + RNG.normal(size=(n, 2)) for centre in CENTRES]) for n in (60, 200)]
MIXTURES = {name: GaussianMixture(2, random_state=0).fit(rows) for name, rows in zip("ab", ROWS, strict=True)}
NUMBERS = {"a": 120, "b": 400}
TRANSITIONS = [[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]]


@COPIES
@pytest.mark.parametrize(
    "models", [MIXTURES, {"a": by_hand(TRANSITIONS), "b": by_hand(TRANSITIONS)}], ids=["mix", "hmm"]
)
def test_models_that_do_not_record_their_number_are_not_fused_without_it(models):
    problems = cs.check(models)
    assert [problem.subject for problem in problems] == ["a, b"]
    assert all("does not say how many observations" in p.text and "'equal'" in p.remedy for p in problems)
    with pytest.raises(cs.errors.InputError) as caught:
        cs.fuse(models)
    assert caught.value.problems == tuple(problems)


def test_a_stated_number_is_that_of_a_description():
    by_fuse = cs.fuse(MIXTURES, n_observations=NUMBERS)
    described = {name: cs.describe(model, n_observations=NUMBERS[name]) for name, model in MIXTURES.items()}
    assert_allclose(by_fuse.posterior.natural, cs.fuse(described).posterior.natural, rtol=ROUNDING)
    assert by_fuse.details["n_observations"] == by_fuse.provenance["result"]["n_observations"] == NUMBERS
    assert_allclose(by_fuse.posterior.counts.sum(), 520, rtol=ROUNDING)


class Table:
    """Rows under named columns, as a data frame has them."""

    def __init__(self, values, columns):
        self.values, self.columns = np.asarray(values), columns

    def __getitem__(self, names):
        return Table(self.values[:, [self.columns.index(name) for name in names]], names)

    def to_numpy(self):
        return self.values


@pytest.mark.parametrize("data", ["array", "table", "csv", "npy"])
def test_describe_and_save_count_the_rows(tmp_path, data):
    model = MIXTURES["a"]
    np.savetxt(tmp_path / "rows.csv", ROWS[0], delimiter=",", header="x,y", comments="")
    np.save(tmp_path / "rows.npy", ROWS[0])
    table = Table(ROWS[0], ["x", "y"])
    given = {"array": ROWS[0], "table": table, "csv": tmp_path / "rows.csv", "npy": str(tmp_path / "rows.npy")}[data]
    expected = cs.describe(model, n_observations=120)
    cs.save(model, tmp_path / "site.safetensors", data=given)
    for posterior in (cs.describe(model, given), cs.load(tmp_path / "site.safetensors")):
        assert posterior.counts.tolist() == expected.counts.tolist()
        assert posterior.natural.tobytes() == expected.natural.tobytes()
        assert posterior.source["samples"] == "given"


def test_weights_of_rows_add_up():
    posterior = cs.describe(MIXTURES["a"], ROWS[0], sample_weight=np.full(120, 0.5))
    assert_allclose(posterior.counts.sum(), 60, rtol=ROUNDING)


def test_equal_counts_all_models_alike_and_says_so():
    """Whatever the files say: the weights of all models are the same."""
    described = {name: cs.describe(model, n_observations=NUMBERS[name]) for name, model in MIXTURES.items()}
    for models in (MIXTURES, described):
        fusion = cs.fuse(models, n_observations="equal", n_components=2)
        assert fusion.details["n_observations"] == fusion.provenance["result"]["n_observations"] == "equal"
        shares = np.mean([np.sort(model.weights_) for model in MIXTURES.values()], axis=0)
        assert_allclose(np.sort(fusion.model.weights_), shares, rtol=ROUNDING)


@pytest.mark.parametrize("make", [lambda n: cs.describe(MIXTURES["b"], n_observations=n),
                                  lambda n: cs.describe(by_hand(TRANSITIONS), n_observations=n)],
                         ids=["mixture", "hmm"])  # fmt: skip
def test_a_file_without_the_number_takes_it_later(tmp_path, make):
    """Recounted from the file alone, a posterior is what describing with the number gives."""
    expected = make(400)
    unknown = make(None)
    cs.save(unknown, tmp_path / "site.safetensors")
    told = cs.describe(cs.load(tmp_path / "site.safetensors"), n_observations=400)
    assert told.source == expected.source
    assert_allclose(told.natural, expected.natural, rtol=ROUNDING)
    assert_allclose(told.counts, expected.counts, rtol=ROUNDING)
    for name, attached in expected.attached.items():
        assert_allclose(told.attached[name].values, attached.values, rtol=ROUNDING)


@pytest.mark.parametrize("wrong", [[120], [120, 400, 400], [120, 0], [120, -1], [120, np.nan], {"a": 120},
                                   {"a": 120, "b": 400, "c": 1}, "all", ["x", "y"], [[120, 400]]],
                         ids=repr)  # fmt: skip
def test_numbers_that_are_not_one_positive_number_for_each_model_are_refused(wrong):
    for act in (cs.fuse, cs.check):
        with pytest.raises(cs.errors.OptionError, match="n_observations"):
            act(MIXTURES, n_observations=wrong)


def test_a_number_that_contradicts_the_model_is_a_problem():
    bayesian = {name: BayesianGaussianMixture(n_components=2, random_state=0).fit(rows)
                for name, rows in zip("ab", ROWS, strict=True)}  # fmt: skip
    assert cs.check(bayesian, n_observations=NUMBERS) == []
    (problem,) = cs.check(bayesian, n_observations={"a": 400, "b": 400})
    assert problem.subject == "a"
    assert "records 120 observations" in problem.text
    assert "n_observations" in cs.check(bayesian, n_observations="equal")[0].text
    described = [cs.describe(model, n_observations=NUMBERS[name]) for name, model in MIXTURES.items()]
    assert "records 400 observations" in cs.check(described, n_observations=[120, 40])[0].text
    with pytest.raises(cs.errors.InputError, match="number of rows of data: is 400, but the model records 120"):
        cs.describe(bayesian["a"], ROWS[1])
    with pytest.raises(cs.errors.OptionError, match="is 7, but data has 120"):
        cs.describe(MIXTURES["a"], ROWS[0], n_observations=7)


def test_data_of_other_columns_are_refused():
    with pytest.raises(cs.errors.InputError, match="has 3 columns, expected 2"):
        cs.describe(MIXTURES["a"], np.zeros((120, 3)))


@pytest.mark.parametrize(("options", "name"), [({"classes": 3}, "classes"), ({"example": np.zeros(2)}, "example"),
                                               ({"sample_weight": np.ones(120)}, "sample_weight"),
                                               ({"data": ROWS[0], "sample_weight": np.ones(3)}, "sample_weight"),
                                               ({"min_count": -1}, "min_count")])  # fmt: skip
def test_arguments_that_mean_nothing_are_refused(options, name, tmp_path):
    with pytest.raises(cs.errors.OptionError, match=name):
        cs.describe(MIXTURES["a"], **options)
    with pytest.raises(cs.errors.OptionError, match=name):
        cs.save(MIXTURES["a"], tmp_path / "site.safetensors", **options)
    assert not (tmp_path / "site.safetensors").exists()


def test_a_model_that_records_its_counts_takes_no_weights_of_rows():
    with pytest.raises(cs.errors.OptionError, match="records the weight"):
        cs.describe(KMeans(2, n_init=1, random_state=0).fit(ROWS[0]), ROWS[0], sample_weight=np.ones(120))


def test_tokens_are_not_rows():
    counts = RNG.poisson(2.0, size=(30, 6))
    model = LatentDirichletAllocation(2, random_state=0).fit(counts)
    assert cs.describe(model, counts).counts.tolist() == cs.describe(model).counts.tolist()


def test_shards_ask_for_the_number_too(tmp_path):
    for name, model in MIXTURES.items():
        cs.save(model, tmp_path / f"{name}.safetensors")
    cs.pack(tmp_path, tmp_path / "packed")
    (problem,) = cs.check(tmp_path / "packed")
    assert "does not say how many observations" in problem
    with pytest.raises(cs.errors.InputError, match="does not say how many observations"):
        cs.fuse(tmp_path / "packed")
    assert cs.check(tmp_path / "packed", n_observations="equal") == []
    packed = cs.fuse(tmp_path / "packed", n_observations="equal")
    assert packed.details["n_observations"] == "equal"
    assert packed.posterior.natural.tobytes() == cs.fuse(MIXTURES, n_observations="equal").posterior.natural.tobytes()
