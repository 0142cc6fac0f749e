"""Learn the posteriors that are aligned later: ``python experiments/bnn/alignment_training.py``.

Kept in the cache folder (``CONSILIENCE_CACHE``, default ``experiments/.cache``) as ``bnn/SETTING/pairS-networkK``:
means and variances as safetensors, and a JSON file with settings and scores. What is there is not learned again, so
that the run may be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from alignment_networks import CLASSES, SETTINGS, Setting
from image_data import Images
from record import versions
from safetensors.torch import load_file, save_file
from training import CACHE as NETWORK_CACHE
from training import say

import consilience as cs

CACHE = NETWORK_CACHE.parent / "bnn"
SPREAD = "/variance"
SAMPLES = 32
ORDER = tuple((name, pair) for pair in range(5) for name in SETTINGS)
"""Settings and pairs, in the order in which they are learned."""


def place_of(name: str, pair: int, which: int) -> Path:
    """Return where a posterior is kept; its JSON file is beside it."""
    return CACHE / name / f"pair{pair}-network{which}.safetensors"


def record_of(name: str, pair: int, which: int) -> dict[str, Any]:
    """Return settings and scores, which were written when it was learned."""
    return json.loads(place_of(name, pair, which).with_suffix(".json").read_text())


def is_there(name: str, pair: int) -> bool:
    """Return whether both networks of a pair are learned."""
    return all(place_of(name, pair, which).with_suffix(".json").exists() for which in range(2))


def load_pair(name: str, pair: int) -> list[cs.BayesianNetwork]:
    """Return the two posteriors of a pair."""
    return [posterior_of(SETTINGS[name], load_file(place_of(name, pair, which))) for which in range(2)]


def posterior_of(setting: Setting, arrays: dict[str, torch.Tensor]) -> cs.BayesianNetwork:
    """Return the network with these means and variances."""
    means = {key: values for key, values in arrays.items() if not key.endswith(SPREAD)}
    prior = float(setting.options["prior_variance"])
    return cs.BayesianNetwork(architecture(setting), means, {key: arrays[key + SPREAD] for key in means}, prior)


def architecture(setting: Setting) -> torch.nn.Module:
    """Return a module of a setting's architecture."""
    if setting.module is not None:
        return setting.module().eval()
    images = setting.data().train.x[:2]
    widths = [int(np.prod(images.shape[1:])), *setting.options["hidden"], CLASSES]
    parts: list[torch.nn.Module] = [torch.nn.Flatten()] if images.ndim > 2 else []
    for one, other in pairwise(widths):
        parts += [torch.nn.Linear(one, other), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1]).eval()


def scores(posterior: cs.BayesianNetwork, images: Images) -> dict[str, float]:
    """Return negative predictive log likelihood in nats and accuracy in percent."""
    found = posterior.predict(images.x, samples=SAMPLES, batch_size=1000)
    truth = images.y.numpy()
    likelihood = found[np.arange(len(truth)), truth].clip(1e-300)
    return {"loss": float(-np.log(likelihood).mean()), "accuracy": float(100 * (found.argmax(axis=1) == truth).mean())}


def train(name: str, pair: int, which: int) -> None:
    """Learn one posterior and keep it, unless it is there."""
    place, setting = place_of(name, pair, which), SETTINGS[name]
    if place.with_suffix(".json").exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    data, start = setting.data(), time.process_time()
    seed = 2 * pair + which
    module = None if setting.module is None else setting.module()
    train_images = data.train if setting.images is None else data.train.at(np.arange(setting.images))
    learner = cs.learners.GaussianBNN(**setting.options, module=module, seed=seed)
    fitted = learner.fit(
        train_images.x,
        train_images.y,
        classes=CLASSES,
        progress=lambda epoch, epochs: say(
            f"{name} {pair} {which}: {epoch}/{epochs}, {time.process_time() - start:.0f} s"
        ),
    )
    posterior = fitted.posterior
    arrays = {**posterior.means, **{key + SPREAD: values for key, values in posterior.variances.items()}}
    save_file({key: values.contiguous() for key, values in arrays.items()}, place)
    found = {
        "setting": name,
        "pair": pair,
        "network": which,
        "settings": setting.as_json(),
        "seed": seed,
        "images": len(train_images),
        "bound": fitted.history.tolist(),
        "seconds": time.process_time() - start,
        "samples": SAMPLES,
        "validation": scores(posterior, data.validation),
        "test": scores(posterior, data.test),
        "versions": versions(),
    }
    place.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    say(f"{name} {pair} {which}: validation {found['validation']}")


def main() -> None:
    """Learn what is not learned yet, pair by pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(SETTINGS), metavar="SETTING")
    parser.add_argument("--most", type=int, default=5, help="pairs, from 0")
    told = parser.parse_args()
    torch.set_num_threads(1)
    for name, pair in ORDER:
        if name in told.only and pair < told.most:
            for which in range(2):
                train(name, pair, which)


if __name__ == "__main__":
    main()
