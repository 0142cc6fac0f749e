"""Problems: texts that know who is at fault and what to do."""

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.mixture import BayesianGaussianMixture
from torch import nn

import consilience as cs
from consilience.federated.check import check_files
from consilience.files.safetensors_file import SafetensorsFile


def _through_pickle(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301  (of this process alone)


WHOLE = cs.Problem("a.safetensors", "is empty", "write it again")


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (WHOLE, "a.safetensors: is empty; write it again"),
        (cs.Problem("a", "is empty"), "a: is empty"),
        (cs.Problem("", "is empty", "write it again"), "is empty; write it again"),
    ],
)
def test_a_problem_is_its_sentence(problem, sentence):
    assert problem == sentence
    assert str(problem) == f"{problem}" == "".join([problem]) == sentence
    assert problem in {sentence}
    assert problem.startswith(sentence[:3])


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, _through_pickle])
def test_copies_keep_the_parts(made):
    again = made(WHOLE)
    assert (again.subject, again.text, again.remedy) == ("a.safetensors", "is empty", "write it again")
    assert again == WHOLE


def test_a_subject_is_added_left_out_and_renamed_without_a_look_at_the_sentence():
    nested = WHOLE.about("lund: 2")
    assert nested == "lund: 2: a.safetensors: is empty; write it again"
    assert (nested.subject, nested.remedy) == ("lund: 2", "write it again")
    assert nested.without_subject() == WHOLE
    assert WHOLE.renamed("a.safetensors", "b").subject == "b"
    assert cs.Problem("", "is empty").about("b").text == "is empty"


def test_a_line_of_a_report_knows_its_code_without_ending_with_it():
    line = cs.Problem("", "sent nothing: oslo", "", "E-ROUND", ends_with_code=False)
    for one in (line, copy.deepcopy(line), _through_pickle(line), line.renamed("oslo", "lund").renamed("lund", "oslo")):
        assert one == "sent nothing: oslo"
        assert (one.code, one.coded("E-INPUT").code) == ("E-ROUND", "E-ROUND")


@pytest.mark.parametrize(
    "error", [cs.errors.InputError, cs.errors.FileFormatError, cs.errors.OptionError, cs.errors.UnsupportedError]
)
def test_every_error_has_its_problems(error):
    assert error("is empty").problems == (f"is empty [{error.code}]",)
    (problem,) = error("a", "is empty", "write it again").problems
    assert (problem.subject, problem.text, problem.remedy) == ("a", "is empty", "write it again")
    several = error([WHOLE, "no models"])
    assert several.problems[0] == WHOLE.coded(error.code)
    assert several.problems[1].subject == ""
    assert str(several) == f"{WHOLE} [{error.code}]\nno models [{error.code}]"
    again = _through_pickle(several)
    assert [problem.subject for problem in again.problems] == ["a.safetensors", ""]


def _mixture(dim):
    data = np.random.default_rng(0).normal(size=(60, dim)) + np.repeat([[0.0], [9.0]], 30, axis=0)
    return BayesianGaussianMixture(n_components=2, random_state=0).fit(data)


def test_check_says_who_is_at_fault_in_a_field():
    problems = cs.check({"lund": _mixture(2), "oslo: north": _mixture(3)})
    assert {problem.subject for problem in problems} == {"oslo: north"}
    with pytest.raises(cs.errors.InputError) as raised:
        cs.fuse({"lund": _mixture(2), "oslo: north": _mixture(3)})
    assert list(raised.value.problems) == problems


def test_a_reader_names_the_file_once(tmp_path):
    path = tmp_path / "site.safetensors"
    path.write_bytes(b"")
    (problem,) = cs.check([path, path])[:1]
    assert problem.subject == str(path)
    assert str(path) not in problem.text


def test_a_server_keeps_its_paths_to_itself(tmp_path):
    path = tmp_path / "site.safetensors"
    path.write_bytes(b"")
    (problem,) = check_files(SafetensorsFile(path)).problems
    assert problem.subject == ""
    assert str(tmp_path) not in problem


def test_a_file_of_an_adapter_that_nobody_registered_is_a_problem(tmp_path):
    family = cs.families.Gamma()
    natural = family.to_natural(shape=[2.0, 3.0], rate=[1.0, 4.0])
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for number, path in enumerate(paths):
        cs.save(cs.Posterior(family, natural * (number + 1), source={"kind": "nobody.Rates"}), path)
    problems = cs.check(paths)
    assert [problem.subject for problem in problems] == list(map(str, paths))
    assert all("consilience.register_adapter" in problem.remedy for problem in problems)
    with pytest.raises(cs.errors.InputError, match=r"nobody\.Rates"):
        cs.fuse(paths)


class _NoExport(nn.Module):
    """A network that decides by the numbers in its input, which tracing cannot follow."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.first(x)) if x.sum() > 0 else self.last(self.first(-x))


def test_check_lists_what_fuse_cannot_support():
    nets = [_NoExport(), _NoExport()]
    (problem,) = cs.check(nets, example=torch.ones(1, 3))
    with pytest.raises(cs.errors.UnsupportedError) as raised:
        cs.fuse(nets, example=torch.ones(1, 3))
    assert raised.value.problems == (problem,)


@pytest.mark.parametrize("widths", [5, "x", [("0", 5)]], ids=str)
def test_target_widths_of_another_type_are_refused(widths):
    nets = [nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)) for _ in range(2)]
    with pytest.raises(cs.errors.OptionError) as raised:
        cs.fuse(nets, example=torch.ones(1, 3), target_widths=widths)
    (problem,) = raised.value.problems
    assert problem.subject == "target_widths"
    assert repr(widths) in problem.text
    assert cs.check(nets, example=torch.ones(1, 3), target_widths=widths) == [problem]


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: cs.methods.SPAHM(optimize="x"), "optimize"),
        (lambda: cs.methods.SPAHM(shrink={}), "shrink"),
        (lambda: cs.methods.FedMA(class_counts=1j), "class_counts"),
        (lambda: cs.methods.FedMA(class_counts=[[1.0, 2.0], [3.0]]), "class_counts"),
        (lambda: cs.methods.FedMA(class_counts=[[1.0, -2.0]]), "class_counts"),
        (lambda: cs.methods.KLNetworkFusion(max_units={1: 4}), "max_units"),
    ],
)
def test_options_of_another_type_are_refused_by_name(make, option):
    with pytest.raises(cs.errors.OptionError, match=f"option {option} must be"):
        make()


def test_bounds_of_groups_that_do_not_exist_are_refused():
    def network():
        module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        means = dict(module.named_parameters())
        return cs.BayesianNetwork(module, means, {name: torch.ones_like(mean) for name, mean in means.items()})

    problems = cs.check(
        [network(), network()], method=cs.methods.KLNetworkFusion(max_units={"a": 1}), example=torch.ones(1, 3)
    )
    assert [problem.subject for problem in problems] == ["max_units"]
