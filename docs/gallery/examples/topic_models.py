"""
Topic models with different vocabularies
========================================

Two sites train LDA on their own texts. Topics are aligned by words, and the fused model
has the words of both.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer

import consilience as cs

themes = {
    "sky": "star planet orbit comet moon",
    "sea": "whale coral tide squid wave",
    "farm": "cow barn plough wheat hen",
}
sees = {"lund": ["sky", "sea"], "oslo": ["sea", "farm"]}
rng = np.random.default_rng(0)
sent = {}
for site, own in sees.items():
    texts = [
        " ".join(rng.choice(themes[own[number % 2]].split(), size=30))
        for number in range(80)
    ]
    vectorizer = CountVectorizer()
    counts = vectorizer.fit_transform(texts)
    model = LatentDirichletAllocation(2, max_iter=30, random_state=0).fit(counts)
    words = cs.Features(names=vectorizer.get_feature_names_out())
    sent[site] = cs.describe(model, features=words)

fusion = cs.fuse(sent)
print("topics:", fusion.n_components)
print("vocabulary:", fusion.details["vocabulary"])

# %%
# Shares of the words in the fused topics: sky of lund, sea of both, farm of oslo.

topics = fusion.model.components_
topics = topics / topics.sum(axis=1, keepdims=True)
words = np.array(fusion.posterior.features.names)
order = np.lexsort((topics.max(axis=0), topics.argmax(axis=0)))
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
image = axes.imshow(topics[:, order], cmap="Blues", aspect="auto")
axes.set_xticks(range(len(words)), words[order], rotation=60, ha="right")
axes.set_yticks(range(len(topics)), [f"topic {k}" for k in range(len(topics))])
figure.colorbar(image, label="share of the topic")
