"""Laws of all public values: they show themselves in few lines, and travel between processes."""

import base64
import copy
import inspect
import pickle
import re
import subprocess
import sys
from enum import Enum
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils import get_tags

import consilience as cs
from consilience.checkpoints.methods import TENSOR_METHODS
from consilience.core.methods import Options
from consilience.drawing.display import MAX_LINES, MAX_WIDTH, scoped_style
from tests.api.kinds_zoo import estimator
from tests.core.values_zoo import ALL_VALUES, SITES, VALUES, estimator_fusion, mixture, posterior_fusion
from tests.networks import methods_zoo as network_methods
from tests.posteriors import methods_zoo as posterior_methods

HOSTILE = {
    "HTML": "<script>alert(1)</script>",
    "newlines": "lund\n\r\nINJECTED",
    "right-to-left": "‮drowssap‬",
    "10,000 letters": "x" * 10_000,
    "braces": "{0} %s {name}",
}
VOID = {"meta", "br", "img", "input", "link", "hr"}


class WellFormed(HTMLParser):
    """Refuses tags that are not closed where they should be, and keeps tags and text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text = [], [], []
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert [tag] == self.open[-1:], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def pickled(value):
    """Return what another process would read."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301  (our own bytes)


def is_value(thing):
    """Return whether a public name is a class of values: no error, status, method or record, and not abstract."""
    no_values = (BaseException, Enum, str, dict, Options)
    return inspect.isclass(thing) and not issubclass(thing, no_values) and not inspect.isabstract(thing)


@pytest.fixture(scope="module", params=ALL_VALUES)
def value(request, tmp_path_factory):
    return ALL_VALUES[request.param](tmp_path_factory.mktemp("value"))


def test_every_public_value_has_a_specimen():
    doors = [cs, cs.results]
    assert VALUES.problems([name for door in doors for name in door.__all__ if is_value(getattr(door, name))]) == []


def test_the_repr_of_every_public_value_is_a_few_short_lines(value):
    lines = repr(value).splitlines()
    assert 1 <= len(lines) <= MAX_LINES, repr(value)
    assert max(map(len, lines)) <= MAX_WIDTH, repr(value)
    assert " at 0x" not in repr(value)


def test_the_summary_of_every_public_value_is_text(value):
    if isinstance(value, Options | cs.families.Family) or type(value).__name__ == "Barrier":  # a mapping of numbers
        return
    assert isinstance(value.summary(), str)
    assert value.summary()


def test_notebooks_show_every_public_value_as_well_formed_html(value):
    if isinstance(value, Options | cs.families.Family):
        return
    page = WellFormed(value._repr_html_())
    assert "script" not in page.tags
    assert type(value).__name__ in "".join(page.text)


def test_a_notebook_that_is_not_trusted_keeps_every_figure(value):
    """JupyterLab's sanitizer takes out ``svg`` and ``style``, leaves their texts, and keeps ``img`` with its file."""
    if isinstance(value, Options | cs.families.Family):
        return
    page = value._repr_html_()
    assert "svg" not in WellFormed(page).tags
    for attributes in re.findall(r"<img([^>]*)>", page):
        image = dict(re.findall(r'(\w+)="([^"]*)"', attributes))
        assert image["alt"]
        kind, content = image["src"].split(",", 1)
        assert kind == "data:image/svg+xml;base64"
        drawing = base64.b64decode(content, validate=True).decode()
        assert ElementTree.fromstring(drawing).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314  (our own)
        assert "prefers-color-scheme:dark" in drawing
        undefined = set(re.findall(r"var\(--([\w-]+)\)", drawing)) - set(re.findall(r"--([\w-]+):", drawing))
        assert not undefined


def test_figures_are_images_in_notebooks():
    assert posterior_fusion()._repr_html_().count("<img") == 2


@pytest.mark.parametrize("travel", [pickled, copy.deepcopy, copy.copy])
def test_every_public_value_can_be_pickled_and_copied(value, travel):
    assert repr(travel(value)) == repr(value)


def test_every_public_value_goes_through_joblib(value, tmp_path):
    joblib.dump(value, tmp_path / "value.joblib")
    assert repr(joblib.load(tmp_path / "value.joblib")) == repr(value)


def test_another_process_reads_what_was_pickled(tmp_path):
    fusion = posterior_fusion()
    (tmp_path / "fusion.pickle").write_bytes(pickle.dumps(fusion))
    program = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).model.means_.sum())"
    run = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "fusion.pickle"], capture_output=True, text=True, check=True
    )
    assert float(run.stdout) == pytest.approx(float(fusion.model.means_.sum()), rel=1e-12)


def test_a_pickled_fusion_still_predicts():
    fusion = pickled(posterior_fusion("ensemble"))
    rows = np.zeros((3, 2))
    assert np.array_equal(fusion.model.score_samples(rows), posterior_fusion("ensemble").model.score_samples(rows))


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_no_name_of_a_site_acts_or_breaks_a_line(name, tmp_path):
    first, second, _ = posterior_fusion().inputs
    fusion = cs.fuse({name: first.value, "oslo": second.value})
    for shown in (fusion, fusion.matching, fusion.verdict):
        assert len(repr(shown).splitlines()) <= MAX_LINES
        assert max(map(len, repr(shown).splitlines())) <= MAX_WIDTH
        page = WellFormed(shown._repr_html_())
        assert "script" not in page.tags
        assert "‮" not in shown._repr_html_() + repr(shown) + shown.summary()
        assert "INJECTED" not in [line.strip() for line in shown.summary().splitlines()]
    assert max(map(len, repr(fusion.matching).splitlines())) <= MAX_WIDTH
    assert len(fusion.verdict.text) < 500


def test_names_of_sites_are_shown_everywhere():
    fusion = posterior_fusion()
    for shown in (fusion, fusion.matching):
        assert all(site in repr(shown) for site in SITES)
        assert all(site in shown._repr_html_() for site in SITES)


def test_styles_in_a_notebook_touch_nothing_beside_the_value():
    flat = re.sub(r"@media[^{]*\{((?:[^{}]*\{[^{}]*\})*)\}", r"\1", scoped_style())
    selectors = [part.strip() for head in re.findall(r"([^{}]+)\{", flat) for part in re.split(r",(?![^(]*\))", head)]
    assert len(selectors) > 100
    assert [one for one in selectors if ".consilience" not in one] == []


METHODS = [
    *(specimen.method for specimen in posterior_methods.SPECIMENS.values()),
    *network_methods.SPECIMENS.values(),
    *(method() for method in TENSOR_METHODS),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda one: f"{type(one).__name__}")
def test_scikit_learn_clones_every_method(method):
    assert type(clone(method)) is type(method)
    assert clone(method) == method
    assert method.set_params(**method.get_params()) == method


def test_setting_options_makes_another_method_and_refuses_unknown_ones():
    method = cs.methods.KLFusion()
    assert method.set_params(regularization=0.5) == cs.methods.KLFusion(regularization=0.5)
    assert method == cs.methods.KLFusion()
    with pytest.raises(cs.errors.OptionError, match="no option regularisation"):
        method.set_params(regularisation=0.5)


def test_a_value_that_lacks_an_attribute_says_so_by_its_code(value):
    if isinstance(value, Options | cs.families.Family) or type(value).__name__ == "Barrier":
        return
    for name in ("no_such_name", "sumary", "plot", "to_frame"):
        if hasattr(type(value), name):
            continue
        with pytest.raises(AttributeError, match=rf"^{type(value).__name__} has no attribute '{name}'") as caught:
            getattr(value, name)
        assert str(caught.value).endswith("[E-ATTRIBUTE]")
        assert ("summary" in str(caught.value)) == (name != "no_such_name")
    with pytest.raises(AttributeError, match=r"^_repr_png_$"):
        _ = value._repr_png_


@pytest.mark.parametrize("name", ["predict", "score_samples", "transform", "state_dict"])
def test_a_fusion_asked_for_what_models_do_points_to_its_model(name, tmp_path):
    for key in ("PosteriorFusion", "NetworkFusion", "EstimatorFusion", "BayesianFusion"):
        fusion = VALUES[key](Path(tmp_path))
        with pytest.raises(AttributeError, match=name) as caught:
            getattr(fusion, name)
        assert f"fusion.model.{name}" in str(caught.value) or key == "EstimatorFusion"


def test_a_fused_model_keeps_the_habits_of_scikit_learn():
    model = posterior_fusion().model
    assert get_tags(model).estimator_type == get_tags(mixture(0)).estimator_type
    assert list(clone(model).get_params()) == list(model.get_params())
    assert list(estimator_fusion().model.get_params()) == list(estimator(0).get_params())
