"""scikit-learn's perplexity of topics beside document completion: ``python experiments/scores/lda_perplexity.py``.

Models of 20 Newsgroups with more and more topics, and of more and more articles, are scored on the same 1,000 held-out
articles in two ways: by ``LatentDirichletAllocation.perplexity`` and by predicting a tenth of every article's tokens
from the others. scikit-learn's is the exponential of a bound, which is taken apart into what it says of the documents
and what it charges for the topics,

    log perplexity = -(E[log p(documents)] - KL of documents) / tokens + sum_k KL(Dir(lambda_k) || Dir(eta)) / tokens.

Needs ``newsgroups20_bow.npz`` in the folder ``CONSILIENCE_DATA`` (default ``../shared/data`` beside the repository).
Writes ``lda_perplexity.json`` beside this file after every fit, so that the run may be stopped and started again.
"""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
from scipy.sparse import csr_array
from sklearn.decomposition import LatentDirichletAllocation
from threadpoolctl import threadpool_limits

from consilience.families import Dirichlet
from consilience.posteriors.topics.coherence import npmi
from consilience.posteriors.topics.document_completion import complete_documents, split_tokens

HERE = Path(__file__).parent
DATA = Path(os.environ.get("CONSILIENCE_DATA", HERE.parents[2] / "shared/data")) / "newsgroups20_bow.npz"
RESULTS = HERE / "lda_perplexity.json"
PRIORS = {"doc_topic_prior": 0.1, "topic_word_prior": 0.01}
"""Those of experiments/kl_fusion/topics.py."""
MAX_ITER = 20
SEEDS = range(3)
BY_TOPICS = [(4000, n_topics) for n_topics in (5, 10, 20, 40, 80)]
BY_ARTICLES = [(n_articles, 20) for n_articles in (500, 1000, 2000, 8000)]
TEST_SIZES = (100, 1000)
"""Held-out articles on which scikit-learn's perplexity is taken: the first of them, and all."""


def load_articles() -> tuple[csr_array, csr_array]:
    """Return the training articles in a fixed random order, and the held-out ones (n, V)."""
    with np.load(DATA) as stored:
        shape = (len(stored["indptr"]) - 1, len(stored["vocab"]))
        counts = csr_array((stored["data"].astype(np.float64), stored["indices"], stored["indptr"]), shape=shape)
        held_out = stored["heldout"]
        training = np.flatnonzero(stored["used"] & ~held_out)
    return counts[np.random.default_rng(0).permutation(training)], counts[np.flatnonzero(held_out)]


def score_fit(training: csr_array, held_out: csr_array, n_topics: int, seed: int) -> dict[str, Any]:
    """Fit a model and return its scores on held-out articles, with the bound in its two parts."""
    model = LatentDirichletAllocation(n_topics, max_iter=MAX_ITER, random_state=seed, **PRIORS)
    started = time.process_time()
    model.fit(training)
    seconds = time.process_time() - started
    family = Dirichlet(training.shape[1])
    topics = family.to_natural(concentration=model.components_)
    prior = family.to_natural(concentration=np.full((1, family.dim), PRIORS["topic_word_prior"]))
    topic_cost = float(family.kl(topics, prior).sum())
    completion = complete_documents(*split_tokens(held_out, rng=seed), model.components_, PRIORS["doc_topic_prior"])
    bounds = {}
    for size in TEST_SIZES:
        articles = held_out[:size]
        bounds[str(size)] = {
            "log_perplexity": float(np.log(model.perplexity(articles))),
            "topics": topic_cost / float(articles.sum()),
        }
    return {
        "n_articles": training.shape[0],
        "n_topics": n_topics,
        "seed": seed,
        "seconds": seconds,
        "sklearn": bounds,
        "completion": -completion.per_token,
        "npmi": float(np.mean(npmi(model.components_, held_out))),
    }


def main() -> None:
    """Score every setting that the results lack."""
    results = json.loads(RESULTS.read_text())["results"] if RESULTS.exists() else []
    done = {(row["n_articles"], row["n_topics"], row["seed"]) for row in results}
    articles, held_out = load_articles()
    settings = {
        "data": "20 Newsgroups, 12,497 stems, 1,000 articles held out; the first n_articles of a fixed random order",
        "priors": PRIORS,
        "max_iter": MAX_ITER,
        "chosen_on": "nothing was chosen by these scores",
        "unit": "nats per token; sklearn's on the first 100 and on all 1,000 held-out articles",
    }
    versions = {"python": platform.python_version(), "scikit-learn": sklearn.__version__, "scipy": scipy.__version__}
    with threadpool_limits(1):
        for n_articles, n_topics in (*BY_TOPICS, *BY_ARTICLES):
            for seed in SEEDS:
                if (n_articles, n_topics, seed) in done:
                    continue
                results.append(score_fit(articles[:n_articles], held_out, n_topics, seed))
                record = {"settings": settings, "versions": versions, "results": results}
                RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
