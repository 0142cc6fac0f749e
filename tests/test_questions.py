"""Questions that users ask: each is answered on a page at most two links from the landing page of the documentation."""

import re
from functools import cache
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
MOST_CLICKS = 2
QUESTIONS = {
    "Which models can be fused?": ("start/which_method", "| LoRA adapters |"),
    "How do I install it, and which extras do I need?": ("start/install", "$ pip install ."),
    "Does it run on Windows, macOS, Python 3.13?": ("start/install", "| Windows |"),
    "Do I need a GPU, and how is one used?": ("start/install", "A GPU helps where"),
    "How do I fuse the Gaussian mixtures of three sites?": ("guides/mixtures", "cs.fuse(models)"),
    "How is the number of components found, and can I set it?": ("start/which_method", "`n_components=`"),
    "Logistic regression in three hospitals, with odds ratios and a forest plot?": ("guides/regression", "odds ratio"),
    "Is the result that of pooled data?": ("start/faq", "Where the verdict says *exact*, yes"),
    "Can I fuse GLMs of statsmodels that were written as formulas?": ("guides/statsmodels", "## Formulas"),
    "Can I fuse Cox regressions?": ("guides/statsmodels", "`PHReg` is stratified by site"),
    "I have estimates and standard errors only: random effects, I2, a prediction interval?": (
        "guides/meta_analysis", "prediction interval for another site"),
    "How must I write the prior of a PyMC model, so that it does not count at every site?": (
        "guides/draws", 'pm.Potential("prior", log_prior / J)'),
    "Which parameters of a hierarchical model are fused?": ("guides/draws", "**Hierarchical models.**"),
    "I have three state_dicts. What now?": ("guides/networks", "Plain `state_dict`s go in too"),
    "What is a description of a network, and what does it tell about people?": (
        "guides/describe_networks", "## What is in it"),
    "Can networks of different widths be fused?": ("start/faq", "Widths of networks: for some methods"),
    "Do non-IID sites work?": ("start/faq", "### My sites are non-IID. Does it work?"),
    "Do models of Hugging Face work?": ("guides/transformers", "## Hugging Face models"),
    "How do I merge two LoRA adapters, and load the result with peft?": ("start/quickstart", "from_pretrained"),
    "Do my recipes of mergekit work, and under which names?": ("coming_from/mergekit", "$ consilience merge recipe"),
    "Can I merge checkpoints that are larger than memory?": ("guides/checkpoints", "## How much it takes"),
    "How does it differ from FedAvg, and can training go on?": ("coming_from/fedavg", "`cs.federated.take_part`"),
    "Does it plug into Flower, with TLS and keys?": ("sites/flower", "FusionStrategy("),
    "How do we run a round in a shared folder, with a deadline and a quorum?": ("sites/rounds", "quorum=2"),
    "What leaves a site, and is it anonymous under the GDPR?": ("sites/privacy", "anonymous in the sense of the GDPR"),
    "How do I add noise for differential privacy?": ("sites/privacy", "GaussianMechanism(epsilon, delta,"),
    "Can the numbers of a site be hidden from the server?": ("sites/secure_aggregation", "sees the sum alone"),
    "What happens if a site is broken, or lies?": ("sites/robust", "robust=True"),
    "Is the fused model better than mine, and how is that known?": ("results/verdict", "whether harm is excluded"),
    "What does the code at the end of a message mean?": ("results/errors", "`consilience explain E-FEW`"),
    "How many sites can there be, and how long does it take?": ("sites/scale", "## How long it takes"),
    "Will later versions read my files?": ("project/releasing", "files of every released version are read"),
    "How do I cite it, and what is the licence?": ("project/cite", "The licence is Apache-2.0"),
    "How do I add a model or a method of my own?": ("project/extend", "`cs.register_adapter`"),
}  # fmt: skip


def links_of(page):
    """Return the pages that a page links to, those of its navigation too."""
    text = (DOCS / f"{page}.md").read_text()
    links = re.findall(r"\]\(([\w./-]+)\.md[)#]|^:link: ([\w/]+)$", text, flags=re.MULTILINE)
    trees = re.findall(r"(?s)```\{toctree\}\n(.*?)```", text)
    names = [first or second for first, second in links] + re.findall(r"(?m)^([\w./]+)$", "\n".join(trees))
    places = ((DOCS / page).parent.joinpath(name).resolve() for name in names)
    return {place.relative_to(DOCS).as_posix() for place in places if place.is_relative_to(DOCS)}


@cache
def clicks():
    """Return the least number of links from the landing page to every page."""
    found, reached = {"index": 0}, ["index"]
    for page in reached:
        new = [one for one in sorted(links_of(page)) if one not in found and (DOCS / f"{one}.md").exists()]
        found |= dict.fromkeys(new, found[page] + 1)
        reached += new
    return found


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_near_the_landing_page(question):
    page, words = QUESTIONS[question]
    assert words in (DOCS / f"{page}.md").read_text()
    assert clicks()[page] <= MOST_CLICKS
