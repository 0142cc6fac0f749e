"""Laws of the default fusion of networks: candidates, choice and verdict, with and without descriptions."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.datasets import load_digits, make_moons
from torch import nn

import consilience as cs
from consilience.cli.commands import cli
from consilience.core.details import Status
from consilience.errors import OptionError
from consilience.networks.choice import inputs
from consilience.networks.choice.sites import Sites
from consilience.networks.choice.teacher import Teacher
from consilience.networks.torch_modules import arrays_of_module
from tests.copies import COPIES
from tests.promises import SEEDS, lower_end

X, Y = load_digits(return_X_y=True)
X, Y = torch.tensor(X / 16, dtype=torch.float32), torch.tensor(Y)
HELD = torch.arange(len(X)) % 3 == 0
CLASSES = {"lund": (0, 1, 2, 3, 4), "oslo": (4, 5, 6, 7), "turku": (7, 8, 9, 0)}

pytestmark = pytest.mark.usefixtures("few_images")


def make(width=24):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def make_normed(width=6):
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * 64, 10),
    )


def train(rows, start, net=None, steps=60, labels=None):
    labels = Y if labels is None else labels
    with torch.random.fork_rng():
        torch.manual_seed(start)
        net = make() if net is None else net()
        optimizer = torch.optim.Adam(net.parameters(), 5e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X[rows]), labels[rows]).backward()
            optimizer.step()
    return net.eval()


def accuracy(net):
    with torch.no_grad():
        return float((net(X[HELD]).argmax(1) == Y[HELD]).double().mean())


HALVES = [~HELD & (torch.arange(len(X)) % 2 == part) for part in (0, 1)]
ROWS = {name: ~HELD & torch.isin(Y, torch.tensor(classes)) for name, classes in CLASSES.items()}


@pytest.fixture(scope="module")
def nets():
    return {name: train(rows, start) for start, (name, rows) in enumerate(ROWS.items())}


@cache
def normed_nets():
    """Return networks with batch normalisation, of one initialisation, that saw different classes."""
    return {name: train(rows, 0, make_normed, steps=80) for name, rows in ROWS.items()}


@pytest.fixture(scope="module")
def described(nets):
    return {name: cs.describe(net, (X[ROWS[name]], Y[ROWS[name]])) for name, net in nets.items()}


@pytest.fixture(scope="module")
def fusion(described):
    return cs.fuse(described)


def same_bytes(first, second):
    one, other = arrays_of_module(first), arrays_of_module(second)
    return all(torch.equal(one[key], other[key]) for key in one)


def test_described_networks_become_one_that_is_better_than_each(fusion, nets):
    assert accuracy(fusion.model) > max(accuracy(net) for net in nets.values()) + 0.2
    verdict = fusion.verdict
    assert (verdict.code, verdict.harmless) == ("labelled", None)
    assert "is better than every site's own network; whether on real ones too" in verdict.text
    assert verdict.text.startswith(f"Chosen: {fusion.details['chosen']}, with ")
    assert set(verdict.candidates) == set(fusion.candidates)
    sites = [score for name, score in verdict.candidates.items() if name.startswith("site:")]
    assert len(sites) == 3
    assert verdict.candidates[fusion.details["chosen"]] <= min(sites)


def test_the_same_seed_gives_the_same_bytes_in_whatever_order_the_sites_come(fusion, described):
    again = cs.fuse(dict(reversed(described.items())))
    assert same_bytes(fusion.model, again.model)
    assert again.verdict == fusion.verdict


def test_the_ensemble_stays_at_hand(fusion, nets, tmp_path):
    ensemble = fusion.ensemble
    assert ensemble.mean == "stationary"
    assert accuracy(ensemble) > max(accuracy(net) for net in nets.values()) + 0.2
    cs.save(ensemble, tmp_path / "all")
    kept = cs.load(tmp_path / "all", module=make)
    assert torch.equal(kept(X[:20]), ensemble(X[:20]))


def test_the_teacher_is_the_ensemble(fusion, nets):
    sites = Sites(
        tuple(nets),
        np.array([local.weight for local in fusion.inputs]),
        tuple(local.description for local in fusion.inputs),
    )
    outputs = np.stack([net(X[:60]).detach().double().numpy() for net in nets.values()])
    teacher = Teacher(sites, True).answers(outputs)
    assert np.allclose(teacher, fusion.ensemble(X[:60]).exp().detach().numpy(), atol=1e-4)


def test_files_with_descriptions_beside_them_are_enough(nets, fusion, tmp_path):
    for name, net in nets.items():
        cs.save(net, tmp_path / f"{name}.safetensors", data=(X[ROWS[name]], Y[ROWS[name]]))
    files = [tmp_path / f"{name}.safetensors" for name in nets]
    assert all((tmp_path / f"{name}.description.safetensors").exists() for name in nets)
    of_files = cs.fuse(files, module=make)
    assert of_files.verdict.candidates == fusion.verdict.candidates
    of_files.save(tmp_path / "fused.safetensors")
    of_files.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "What was chosen among" in page
    assert "Chosen: " in page


def test_without_a_module_described_networks_are_refused(nets, tmp_path):
    for name, net in nets.items():
        cs.save(
            net, tmp_path / f"{name}.safetensors", data=(X[ROWS[name]], Y[ROWS[name]]), symmetry=cs.symmetry(net, X[:2])
        )
    files = sorted(path for path in tmp_path.glob("*.safetensors") if "description" not in path.name)
    told = "module: is needed: the default compares networks by what they answer"
    with pytest.raises(OptionError, match=told):
        cs.fuse(files)
    assert str(cs.check(files)[0]).startswith(told)
    assert cs.fuse(files, "consensus", refit=False).details["proved"]


def test_a_bound_too_short_for_matched_images_is_no_error():
    def seen(seed):
        torch.manual_seed(seed)
        layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        net = nn.Sequential(*layers).train()
        net(torch.rand(64, 1, 8, 8))
        return net.eval()

    with torch.random.fork_rng():
        fusion = cs.fuse([seen(0), seen(1)], example=torch.rand(2, 1, 8, 8), max_seconds=1e-6)
    assert fusion.verdict.code == "no_inputs"
    assert "No images were matched (max_seconds" in fusion.verdict.text


def test_without_descriptions_nothing_rests_on_made_up_inputs(nets):
    plain = cs.fuse(nets, example=X[:2])
    assert (plain.verdict.code, plain.verdict.harmless) == ("no_inputs", None)
    assert "describe" in plain.verdict.remedy
    assert plain.details["chosen"] in {f"site:{name}" for name in nets}
    assert same_bytes(plain.model, nets[plain.details["chosen"].removeprefix("site:")])
    weighted = cs.fuse(nets, example=X[:2], weights=[1, 1, 1])
    assert weighted.details["chosen"] == "matched"
    assert weighted.repaired is None
    weight = np.mean([network.arrays["0.weight"].numpy() for network in weighted.aligned], axis=0)
    assert np.allclose(weighted.model[0].weight.detach().numpy(), weight, atol=1e-6)


def test_counts_alone_choose_the_site_that_covers_the_classes_best(described):
    silent = {}
    for name, one in described.items():
        said = one.description
        counts = cs.Description(said.digest, said.n_observations, classes=said.classes, class_counts=said.class_counts)
        silent[name] = replace(one, description=counts)
    fusion = cs.fuse(silent)
    assert fusion.details["chosen"] == "site:lund"  # it holds most classes, and most observations
    assert same_bytes(fusion.model, described["lund"].module)
    assert fusion.verdict.harmless is None


def test_networks_of_one_start_without_descriptions_are_aligned_and_refitted():
    rows = [~HELD & (torch.arange(len(X)) % 2 == part) for part in (0, 1)]
    nets = [train(of_site, start=7, steps=30) for of_site in rows]
    fusion = cs.fuse(nets, example=X[:2])
    assert fusion.details["chosen"] == "refit"
    assert "layers fitted on synthetic inputs" in fusion.repaired
    assert "often worse than the best of them" in fusion.verdict.text
    assert fusion.verdict.harmless is None
    aligned = cs.fuse(nets, example=X[:2], refit=False)
    assert aligned.details["chosen"] == "matched"
    assert aligned.objective == min(aligned.details["starts"])  # their numbering is one of the three


def test_sites_that_nothing_tells_apart_do_not_depend_on_the_order_of_the_call(nets):
    names = list(nets)
    chosen = {cs.fuse({n: nets[n] for n in order}, example=X[:2]).details["chosen"] for order in (names, names[::-1])}
    assert len(chosen) == 1
    equal = {name: cs.describe(net, n_observations=50, example=X[:2]) for name, net in nets.items()}
    larger = {**equal, "turku": cs.describe(nets["turku"], n_observations=51, example=X[:2])}
    assert cs.fuse(larger).details["chosen"] == "site:turku"


@COPIES
def test_equal_networks_come_back(nets):
    net = nets["lund"]
    rows = ROWS["lund"]
    fusion = cs.fuse([cs.describe(net, (X[rows], Y[rows])) for _ in range(2)])
    assert fusion.details["chosen"].startswith(("site:", "average", "distill", "refit"))
    assert accuracy(fusion.model) >= accuracy(net) - 0.01


def test_a_constant_in_the_head_of_one_site_changes_no_answer(nets, described):
    shifted = make()
    shifted.load_state_dict(nets["oslo"].state_dict())
    with torch.no_grad():
        shifted[2].bias += 3.0
        shifted[2].weight += 0.5
    rows = ROWS["oslo"]
    moved = cs.fuse({**described, "oslo": cs.describe(shifted.eval(), (X[rows], Y[rows]))}, steps=0)
    plain = cs.fuse(described, steps=0)
    ours, theirs = (f.candidates["class_heads"](X[:50]).softmax(1) for f in (plain, moved))
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_a_site_that_saw_other_classes_is_no_start(fusion):
    assert not any(name.startswith("distill(site:") for name in fusion.candidates)
    halves = [~HELD & (torch.arange(len(X)) % 2 == site) for site in range(2)]
    alike = {f"site {n}": cs.describe(train(rows, n), (X[rows], Y[rows])) for n, rows in enumerate(halves)}
    names = [name for name in cs.fuse(alike, steps=25).verdict.candidates if name.startswith("distill(")]
    assert len(names) == 3
    assert sum(name.startswith("distill(site:") for name in names) == 1


def test_unlabelled_inputs_are_split_to_fit_and_to_compare(nets):
    fusion = cs.fuse(nets, example=X[:2], inputs=X[HELD][:300])
    assert fusion.verdict.criterion.startswith("disagreement")
    assert fusion.verdict.harmless is None
    # Nobody says the classes; the answers on these inputs tell that sites differ in them.
    assert not any(name.startswith("distill(site:") for name in fusion.candidates)
    few = cs.fuse(nets, example=X[:2], inputs=X[:2])
    assert "2 inputs are too few to compare candidates on" in few.verdict.text


def test_batch_normalisation_tells_of_inputs_that_nobody_describes():
    nets = [train(of_site, start, make_normed, steps=80) for start, of_site in enumerate(HALVES)]
    fusion = cs.fuse(nets, example=X[:2], steps=20)
    assert "refit" in fusion.candidates
    assert fusion.verdict.criterion.startswith("disagreement")
    assert fusion.verdict.harmless is None


@pytest.mark.slow
@pytest.mark.promise
def test_what_batch_normalisation_tells_keeps_the_default_near_the_best_site_over_eight_seeds():
    gains = []
    for seed in SEEDS:
        nets = [train(of_site, 10 * seed + start, make_normed, steps=80) for start, of_site in enumerate(HALVES)]
        fused = cs.fuse(nets, example=X[:2], steps=20, rng=seed).model
        gains.append(accuracy(fused) - max(map(accuracy, nets)))
    assert lower_end(gains) > -0.02, gains


def test_classes_that_nobody_says_are_estimated_on_matched_images():
    nets = normed_nets()
    fusion = cs.fuse(nets, example=X[:2], steps=50)
    pooled = np.bincount(Y[~HELD], minlength=10) / int((~HELD).sum())
    estimated = fusion.details["estimated_classes"]
    true = {name: np.bincount(Y[ROWS[name]], minlength=10) / int(ROWS[name].sum()) for name in estimated}
    distances = {name: (np.abs(shares - true[name]).sum(), np.abs(pooled - true[name]).sum())
                 for name, shares in estimated.items()}  # fmt: skip
    own, that_of_all = np.mean(list(distances.values()), axis=0)
    assert own < 0.8 * that_of_all, distances  # 0.54 in one thread and 0.72 in two
    assert fusion.ensemble.mean == "stationary"
    assert accuracy(fusion.model) > max(map(accuracy, nets.values())) + 0.2
    assert "of their class distribution, as their answers on matched images tell" in fusion.verdict.text
    backwards = cs.fuse(dict(reversed(nets.items())), example=X[:2], steps=50)
    assert same_bytes(fusion.model, backwards.model)


def test_what_a_site_says_of_its_classes_is_not_estimated():
    nets = normed_nets()
    lund = cs.describe(nets["lund"], (X[ROWS["lund"]], Y[ROWS["lund"]]))
    said = lund.description
    counts = cs.Description(said.digest, said.n_observations, classes=said.classes, class_counts=said.class_counts)
    mixed = cs.fuse({**nets, "lund": replace(lund, description=counts)}, example=X[:2], steps=5)
    np.testing.assert_allclose(mixed.details["estimated_classes"]["lund"], said.class_counts / said.class_counts.sum())


def test_images_of_alike_sites_are_matched_beside_draws_only_where_no_site_can_be_taken(monkeypatch):
    def net_of(width):
        flat = 36 * width
        layers = nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(flat, 10)
        return nn.Sequential(*layers)

    def described(part):
        net = net_of(4)
        rows = ~HELD & (torch.arange(len(X)) % 2 == part)
        images = X[rows].reshape(-1, 1, 8, 8)
        for _ in range(20):
            net(images)
        return cs.describe(net.eval(), (images, Y[rows]))

    sites = [described(part) for part in (0, 1)]
    calls = []
    original = inputs.matched_images
    monkeypatch.setattr(inputs, "matched_images", lambda *a, **k: calls.append(1) or original(*a, **k))
    cs.fuse(sites, steps=2)
    cs.fuse(sites, steps=0, target=net_of(5))
    assert not calls
    wider = {"steps": 2, "target": net_of(5)}
    cs.fuse(sites, **wider)
    assert len(calls) == 2
    short = cs.fuse(sites, **wider, max_seconds=1e-6)
    assert any("no images were matched" in note for note in short.details["left_out"])


def test_no_images_are_matched_beside_draws_of_sites_whose_classes_differ(monkeypatch):
    sites = []
    for rows in ROWS.values():
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
        images = X[rows].reshape(-1, 1, 8, 8)
        net(images)
        sites.append(cs.describe(net.eval(), (images, Y[rows])))
    calls = []
    monkeypatch.setattr(inputs, "matched_images", lambda *a, **k: calls.append(1))
    cs.fuse(sites, steps=2)
    assert not calls


def test_regressions_are_compared_with_the_mean_answer():
    target = torch.sin(X.sum(1, keepdim=True))
    nets = []
    for start, rows in enumerate(ROWS.values()):
        with torch.random.fork_rng():
            torch.manual_seed(start)
            net = nn.Sequential(nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 1))
        optimizer = torch.optim.Adam(net.parameters(), 5e-3)
        for _ in range(30):
            optimizer.zero_grad()
            (net(X[rows]) - target[rows]).square().mean().backward()
            optimizer.step()
        nets.append(cs.describe(net.eval(), (X[rows], target[rows])))
    fusion = cs.fuse(nets)
    assert fusion.verdict.criterion.startswith("squared distance")
    assert fusion.verdict.harmless is None
    assert fusion.ensemble.mean == "logits"


class Reader(nn.Module):
    """A network of texts of eight tokens."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(60, 12), nn.Linear(12, 3)

    def forward(self, words):
        return self.out(self.words(words).mean(dim=1).tanh())


def topics(n, classes, seed):
    """Return texts (n, 8) and their classes: each class has twenty words of its own for half of the text."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(classes)[torch.randint(len(classes), (n,), generator=generator)]
    own = 20 * labels[:, None] + torch.randint(20, (n, 8), generator=generator)
    anything = torch.randint(60, (n, 8), generator=generator)
    return torch.where(torch.rand(n, 8, generator=generator) < 0.5, own, anything), labels


@pytest.fixture(scope="module")
def readers():
    sites = {}
    for seed, (name, classes) in enumerate({"lund": (0, 1), "oslo": (1, 2), "turku": (2, 0)}.items()):
        words, labels = topics(400, classes, seed)
        with torch.random.fork_rng():
            torch.manual_seed(9)  # one start
            net = Reader()
            optimizer = torch.optim.Adam(net.parameters(), 2e-2)
            for _ in range(60):
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(words), labels).backward()
                optimizer.step()
        sites[name] = cs.describe(net.eval(), (words, labels))
    return sites


def test_texts_described_by_class_are_compared_by_their_errors(readers):
    fusion = cs.fuse(readers)
    assert fusion.verdict.code == "labelled"
    assert "is better than every site's own network; whether on real ones too" in fusion.verdict.text
    words, labels = topics(2000, (0, 1, 2), 7)
    with torch.no_grad():
        right, *of_sites = (
            float((net(words).argmax(1) == labels).double().mean())
            for net in (fusion.model, *(site.module for site in readers.values()))
        )
    assert right > max(of_sites) + 0.1


def test_texts_that_no_class_describes_are_compared_with_the_ensemble(readers):
    plain = {
        name: replace(site, description=replace(site.description, class_tokens={})) for name, site in readers.items()
    }
    verdict = cs.fuse(plain).verdict
    assert verdict.criterion.startswith("disagreement")
    assert verdict.harmless is None


def test_a_bound_on_time_says_what_it_left_out(described):
    fusion = cs.fuse(described, max_seconds=1e-9)
    assert "was left out: 1e-09 seconds had passed" in fusion.verdict.text
    assert fusion.status is Status.OUT_OF_TIME
    assert fusion.provenance["result"]["status"] == "out_of_time"
    assert not [name for name in fusion.verdict.candidates if name.startswith("distill")]


def test_robust_averages_by_name_trust_no_description(described):
    fusion = cs.fuse(described, robust="median")
    assert fusion.verdict.candidates == {}
    assert "refit" not in fusion.details


@pytest.fixture(scope="module")
def alike_sites():
    """Return seven described networks of one start, trained on digits of one distribution."""
    parts = torch.nonzero(~HELD).flatten().chunk(7)
    return {f"site {n}": cs.describe(train(rows, 0), (X[rows], Y[rows])) for n, rows in enumerate(parts)}


def test_robust_fusion_that_keeps_all_sites_is_the_default(alike_sites):
    plain, robust = (cs.fuse(alike_sites, robust=robust) for robust in (None, True))
    assert robust.details["robust"]["left_out"] == []
    assert robust.details["chosen"] == plain.details["chosen"]
    assert accuracy(robust.model) == pytest.approx(accuracy(plain.model), abs=0.01)
    assert robust.verdict.text.startswith("Chosen: ")
    assert "would not be seen" in robust.verdict.text


def test_robust_fusion_chooses_among_candidates_of_the_sites_that_it_keeps(alike_sites):
    names = list(alike_sites)
    hostile = {}
    for name in names[5:]:
        rows = torch.nonzero(~HELD).flatten().chunk(7)[int(name[-1])]
        hostile[name] = cs.describe(train(rows, 0, steps=60, labels=9 - Y), (X[rows], 9 - Y[rows]))
        claimed = replace(hostile[name].description, n_observations=1e6)
        hostile[name] = replace(hostile[name], description=claimed)
    honest = {name: alike_sites[name] for name in names[:5]}
    robust = cs.fuse({**honest, **hostile}, robust=True)
    assert {record["model"] for record in robust.details["robust"]["left_out"]} == set(hostile)
    assert [local.name for local in robust.inputs] == [*honest, *hostile]
    assert {local.name for local in robust.inputs if local.weight == 0.0} == set(hostile)
    assert [local.weight for local in robust.inputs][:5] == pytest.approx([0.2] * 5, abs=0.01)
    assert set(robust.ensemble.names) == set(honest)
    for group, matching in robust.matching.items():
        assert matching.names == (*honest, *hostile)
        assert (matching.of_site(6) == -1).all()
        assert len(matching.of_site(0)) == robust.groups[group]
    assert len(robust.aligned) == 7
    assert [one["name"] for one in robust.provenance["inputs"]] == sorted([*honest, *hostile])
    assert "weak here" not in robust.verdict.text
    assert accuracy(robust.model) == pytest.approx(accuracy(cs.fuse(honest).model), abs=0.02)


def test_weights_of_the_call_come_before_numbers_of_observations(described):
    n = np.array([one.description.n_observations for one in described.values()])
    by_default = cs.fuse(described, "average")
    assert [local.weight for local in by_default.inputs] == pytest.approx(n / n.sum())
    stated = cs.fuse(described, "average", weights=[1, 1, 2])
    assert [local.weight for local in stated.inputs] == pytest.approx([0.25, 0.25, 0.5])


def test_harm_is_not_excluded_where_hardly_any_class_is_described():
    few = [rows[:19] for rows in (torch.nonzero(~HELD & (label == Y)).flatten() for label in range(10))]
    much = torch.nonzero(~HELD & (Y < 2)).flatten()
    sites = {}
    for start, (name, rows) in enumerate({"two classes": much, "all": torch.cat(few)}.items()):
        sites[name] = cs.describe(train(rows, start, steps=40), (X[rows], Y[rows]))
    fusion = cs.fuse(sites)
    assert fusion.verdict.harmless is None
    assert fusion.verdict.criterion.startswith("disagreement")


@pytest.mark.parametrize(("sizes", "code"), [((30, 30, 18), "chosen"), ((30, 18, 18), "no_inputs")])
def test_half_of_all_observations_are_enough_to_compare_with_the_ensemble(sizes, code):
    sites = {}
    for site, n in enumerate(sizes):
        rows = torch.nonzero(~HELD).flatten()[30 * site :][:n]
        net = train(rows, site, steps=20)
        with pytest.warns(cs.errors.WithheldWarning):
            sites[f"site {site}"] = cs.describe(net, (X[rows], Y[rows]), classes=10, min_count=1)
    verdict = cs.fuse(sites).verdict
    assert (verdict.code, verdict.harmless) == (code, None)
    if code == "chosen":
        assert verdict.criterion.startswith("disagreement")
        assert "site 2: inputs are not described, and none were drawn" in verdict.text


def test_sites_are_compared_with_a_network_of_another_width(described):
    fusion = cs.fuse(described, target_widths={"0": 30})
    assert "is better than every site's own network; whether on real ones too" in fusion.verdict.text
    assert fusion.groups == {"0": 30}
    assert not [name for name in fusion.candidates if name.startswith("site:")]


def test_a_verdict_is_on_the_network_that_was_judged(fusion):
    repaired = cs.repair(fusion, X[HELD][:100], kind="refit")
    assert repaired.verdict.code == "converged"
    assert repaired.verdict.harmless is None
    assert "chosen" not in repaired.details


def test_networks_that_end_in_a_softmax_are_asked_for_what_they_answer(nets, described, fusion):
    soft = {name: nn.Sequential(*net, nn.Softmax(dim=1)).eval() for name, net in nets.items()}
    of_soft = cs.fuse({name: cs.describe(net, (X[ROWS[name]], Y[ROWS[name]])) for name, net in soft.items()})
    assert torch.allclose(of_soft.ensemble(X[:50]), fusion.ensemble(X[:50]), atol=1e-3)
    assert accuracy(of_soft.model) > max(accuracy(net) for net in nets.values()) + 0.1  # without a head to fit


def test_a_site_that_overstates_its_observations_does_not_decide_a_robust_fusion(described):
    liar = cs.describe(make(), n_observations=10**9, example=X[:2])
    fusion = cs.fuse({**described, "liar": liar}, robust="median")
    assert [local.weight for local in fusion.inputs] == pytest.approx([0.25] * 4)


def test_fisher_information_makes_one_candidate(nets, described):
    known = {name: cs.fisher(net, X[ROWS[name]], "diagonal") for name, net in nets.items()}
    fusion = cs.fuse(described, fishers=known, steps=0)
    assert "fisher" in fusion.verdict.candidates
    silent = cs.fuse(nets, fishers=known, example=X[:2])
    assert "Fisher information was not used" in silent.verdict.text


@pytest.mark.parametrize(
    ("inputs", "message"),
    [(torch.full((40, 64), torch.nan), "NaN or infinite"), (torch.zeros(40, 5), "does not take an input such as")],
)
def test_inputs_that_do_not_fit_are_refused(nets, inputs, message):
    with pytest.raises(cs.errors.InputError, match=message):
        cs.fuse(nets, example=X[:2], inputs=inputs)


def test_inputs_may_be_numpy_arrays(nets):
    fusion = cs.fuse(nets, example=X[:2], inputs=X[HELD][:200].numpy(), steps=0)
    assert fusion.verdict.criterion == "disagreement with the sites' ensemble"


def two_class_nets(final):
    nets = []
    for start, kept in enumerate((0.1, 0.9)):  # one site has few of the first class, the other few of the second
        rows = torch.nonzero(~HELD & (Y < 2)).flatten()
        draws = torch.rand(len(rows), generator=torch.Generator().manual_seed(start))
        rows = rows[draws < torch.where(Y[rows] == 0, kept, 1 - kept)]
        with torch.random.fork_rng():
            torch.manual_seed(start)
            net = nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 1))
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            logits = net(X[rows]).squeeze(1) if start else net(X[rows])[:, 0]
            nn.functional.binary_cross_entropy_with_logits(logits, (Y[rows] == 1).float()).backward()
            optimizer.step()
        net = nn.Sequential(*net, *final).eval()
        nets.append(cs.describe(net, (X[rows], Y[rows]), classes=2))
    return nets


@pytest.mark.parametrize(("final", "middle"), [((nn.Sigmoid(),), 0.5), pytest.param((), 0.0, marks=pytest.mark.slow)])
def test_one_output_tells_two_classes_apart(final, middle, tmp_path):
    nets = two_class_nets(final)
    fusion = cs.fuse(nets)
    assert fusion.verdict.criterion.startswith("error on inputs drawn")
    assert fusion.details["one_output"] == ("probabilities" if final else "logits")
    test = HELD & (Y < 2)
    with torch.no_grad():
        answers = fusion.model(X[test])
        of_both = fusion.ensemble(X[test])
    assert answers.shape == (int(test.sum()), 1)
    assert float(((answers[:, 0] > middle) == (Y[test] == 1)).double().mean()) > 0.97
    assert float((of_both.argmax(1) == Y[test]).double().mean()) > 0.97
    assert any(name.startswith("distill") for name in fusion.candidates)
    assert ("refit_head" in fusion.candidates) == (not final)
    cs.save(fusion.ensemble, tmp_path / "kept")
    make_one = nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 1), *final)
    kept = cs.load(tmp_path / "kept", module=make_one)
    assert torch.equal(kept(X[test]), fusion.ensemble(X[test]))


def test_one_number_that_is_no_probability_is_not_compared():
    nets = two_class_nets((nn.Tanh(),))
    fusion = cs.fuse(nets)
    assert "neither log odds nor a probability" in fusion.verdict.text
    assert fusion.verdict.harmless is None


def test_observations_alone_choose_the_site_of_most(nets):
    sites = {
        name: cs.describe(net, n_observations=n, example=X[:2])
        for (name, net), n in zip(nets.items(), (10, 30, 20), strict=True)
    }
    fusion = cs.fuse(sites)
    assert fusion.details["chosen"] == "site:oslo"
    assert same_bytes(fusion.model, nets["oslo"])
    assert fusion.verdict.harmless is None
    assert cs.fuse(sites, weights=[1, 1, 1]).details["chosen"] == "matched"
    assert cs.fuse(sites, n_observations="equal").details["chosen"] == "matched"
    by_name = cs.fuse(nets, example=X[:2], n_observations={"lund": 50, "oslo": 30, "turku": 20})
    assert by_name.details["chosen"] == "site:lund"
    assert [local.weight for local in by_name.inputs] == pytest.approx([0.5, 0.3, 0.2])


def test_numbers_of_observations_must_be_one_for_each_network(nets):
    with pytest.raises(cs.errors.OptionError, match="expected 3 numbers, one for each"):
        cs.fuse(nets, example=X[:2], n_observations=[1, 2])


def test_a_network_of_another_width_that_is_worse_than_a_site_is_told(nets, tmp_path):
    strong = train(~HELD, 0, steps=120)
    weak = next(iter(nets.values()))
    sites = {
        "strong": cs.describe(strong, (X[~HELD], Y[~HELD])),
        "weak": cs.describe(weak, (X[ROWS["lund"]], Y[ROWS["lund"]])),
    }
    fusion = cs.fuse(sites, target_widths={"0": 25}, steps=0, refit=False, weights=[1, 9])
    assert fusion.verdict.harmless is False
    assert fusion.verdict.code == "harm"
    assert not [name for name in fusion.candidates if name.startswith("site:")]
    assert [name for name in fusion.verdict.candidates if name.startswith("site:")]
    with pytest.warns(cs.errors.HarmWarning, match="worse than a site's own network"):
        assert fusion.model
    with pytest.warns(cs.errors.HarmWarning, match="take the network of that site"):
        fusion.save(tmp_path / "fused.safetensors")


def test_a_fused_file_says_its_verdict(fusion, tmp_path):
    fusion.save(tmp_path / "fused.safetensors")
    result = CliRunner().invoke(cli, ["inspect", str(tmp_path / "fused.safetensors")])
    assert fusion.verdict.text.split(".")[0] in " ".join(result.output.split())


class RecurrentReader(nn.Module):
    """A recurrent network of words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 6)
        self.steps = nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        states, _ = self.steps(self.words(x))
        return self.head(states.mean(1))


class Listener(nn.Module):
    """A recurrent network of real sequences."""

    def __init__(self):
        super().__init__()
        self.steps = nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        states, _ = self.steps(x)
        return self.head(states.mean(1))


def sequences(kind, rng, labels):
    """Return sequences of classes: of words that are frequent in them, or of numbers about a mean of theirs."""
    n = len(labels)
    if kind is Listener:
        return torch.tensor(rng.normal(size=(n, 7, 4)) + np.eye(4)[labels][:, None], dtype=torch.float32)
    own = 10 * labels[:, None] + rng.integers(0, 10, (n, 7))
    return torch.tensor(np.where(rng.random((n, 7)) < 0.6, own, rng.integers(0, 30, (n, 7))))


def recurrent_fusion(kind, seed):
    """Return a fusion of two described recurrent networks whose classes differ, with the networks."""
    rng = np.random.default_rng(seed)
    described, nets = {}, {}
    for start, (name, shares) in enumerate({"lund": [0.65, 0.3, 0.05], "oslo": [0.05, 0.3, 0.65]}.items()):
        labels = rng.choice(3, 700, p=shares)
        inputs = sequences(kind, rng, labels)
        with torch.random.fork_rng():
            torch.manual_seed(10 * seed + start)
            nets[name] = kind()
        optimizer = torch.optim.Adam(nets[name].parameters(), 1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            nn.functional.cross_entropy(nets[name](inputs), torch.tensor(labels)).backward()
            optimizer.step()
        described[name] = cs.describe(nets[name].eval(), (inputs, torch.tensor(labels)))
    return cs.fuse(described, n_inputs=800, steps=60, rng=seed), nets


@pytest.mark.parametrize("kind", [Listener, pytest.param(RecurrentReader, marks=pytest.mark.slow)])
def test_recurrent_networks_are_chosen_among_too(kind):
    fusion, _ = recurrent_fusion(kind, 0)
    candidates = fusion.verdict.candidates
    assert fusion.verdict.criterion.startswith("error on inputs drawn")
    assert {"site:lund", "site:oslo", "matched", "class_heads"} <= set(candidates)
    assert any(name.startswith("distill") for name in candidates)
    assert candidates[fusion.details["chosen"]] <= min(candidates["site:lund"], candidates["site:oslo"])


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("kind", [Listener, RecurrentReader])
def test_the_default_of_recurrent_networks_is_not_below_the_best_site_over_eight_seeds(kind):
    gains = []
    for seed in SEEDS:
        fusion, nets = recurrent_fusion(kind, seed)
        rng = np.random.default_rng([seed, 1])
        labels = rng.integers(0, 3, 3000)
        inputs = sequences(kind, rng, labels)
        with torch.no_grad():
            of_fused, *of_sites = (
                float((net(inputs).argmax(1).numpy() == labels).mean()) for net in (fusion.model, *nets.values())
            )
        gains.append(of_fused - max(of_sites))
    assert lower_end(gains) > -0.01, gains


# -- Batch normalisation and descriptions that tell nothing of use.


@cache
def trained_halves(make_net):
    return [train(of_site, start, make_net, steps=10) for start, of_site in enumerate(HALVES)]


def halves(make_net=make_normed):
    """Return networks of two sites that a test may change, and the rows of each."""
    return deepcopy(trained_halves(make_net)), HALVES


def untracked():
    net = make_normed()
    net[2] = nn.BatchNorm2d(6, track_running_stats=False)
    return net


def test_statistics_that_were_never_updated_or_are_not_kept_are_said():
    fresh, _ = halves()
    fresh[1][2].reset_running_stats()
    verdict = cs.fuse(fresh, example=X[:2]).verdict
    assert verdict.code == "no_inputs"
    assert verdict.text.count("model 1: batch normalisation 2 has never seen data (mean 0, variance 1)") == 1
    with pytest.raises(cs.errors.UnsupportedError, match="model 1: batch normalisation 2 has never seen data"):
        cs.fuse(fresh, "distill", example=X[:2])
    kept_none, _ = halves(untracked)
    verdict = cs.fuse(kept_none, example=X[:2]).verdict
    assert "batch normalisation 2 keeps no running statistics (`track_running_stats=False`)" in verdict.text


@pytest.mark.parametrize(
    "method",
    [
        *(None, "distill", "consensus", "average", "ensemble"),
        *(pytest.param(method, marks=pytest.mark.slow) for method in ("ot", "rebasin", "wb", "fedma")),
    ],
)
def test_every_method_says_whose_statistics_were_never_updated(method):
    fresh, _ = halves()
    fresh[1][2].reset_running_stats()
    inputs = {"inputs": X[:300]} if method in (None, "distill", "consensus") else {}
    arguments = {} if method == "ensemble" else {"example": X[:2], **inputs}
    fusion = cs.fuse({"lund": fresh[0], "oslo": fresh[1]}, method, **arguments)
    said = "oslo: batch normalisation 2 has never seen data (mean 0, variance 1)"
    assert fusion.verdict.text.count(said) == 1
    assert "train it in `train()` mode, or leave it out" in fusion.verdict.remedy
    assert f"warning: {said}" in fusion.summary()
    assert "lund: batch" not in fusion.summary()


@pytest.mark.covering(2)
@pytest.mark.parametrize("method", [None, "distill", "consensus", "ot", "average"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1.0, r"array 2.running_var has a negative variance \(-1\); leave this network out, or train it again"),
        (float("nan"), "array 2.running_var has NaN or infinite values"),
    ],
)
def test_variances_that_are_none_are_refused_by_name(method, value, message):
    broken, of_site = halves()
    broken[1][2].running_var[3] = value
    with pytest.raises(cs.errors.InputError, match=f"^model 1: {message}.*\\[E-[A-Z]+\\]$"):
        cs.fuse(broken, method, example=X[:2])
    (problem,) = cs.check(broken, method, example=X[:2])
    assert problem.startswith("model 1: array 2.running_var has")
    with pytest.raises(cs.errors.InputError, match=message):
        cs.describe(broken[1], (X[of_site[1]], Y[of_site[1]]))


@pytest.mark.parametrize("method", [None, "distill", "consensus"])
def test_a_network_that_keeps_no_statistics_beside_one_that_does_is_named(method):
    (tracked, _), (_, kept_none) = halves()[0], halves(untracked)[0]
    with pytest.raises(cs.errors.InputError, match=r"^model 1: arrays 2.running_mean, 2.running_var are missing; .*$"):
        cs.fuse([tracked, kept_none], method, example=X[:2])


def test_a_time_too_short_for_one_step_on_matched_images_is_told_as_it_was_given():
    with pytest.raises(
        cs.errors.OptionError, match=r"^max_seconds: 1e-06 s were over before the first step: .*; give more"
    ):
        cs.fuse(halves()[0], "distill", example=X[:2], max_seconds=1e-6)


@pytest.mark.parametrize("method", [None, "distill"])
def test_inputs_described_with_another_shape_are_refused(method):
    nets, rows = halves()
    described = [cs.describe(net, (X[of_site], Y[of_site])) for net, of_site in zip(nets, rows, strict=True)]
    others = [replace(one, description=replace(one.description, input_shape=(8, 8))) for one in described]
    with pytest.raises(
        cs.errors.InputError, match=r"descriptions: Sequential does not take an input such as .* \(2, 8, 8\)"
    ):
        cs.fuse(others, method)
    with pytest.raises(cs.errors.InputError, match="example: Sequential does not take an input"):
        cs.fuse(described, method, example=torch.zeros(2, 1, 8, 8))


class Attending(nn.Module):
    """Attention, whose output weights are read without a call of their layer."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 10)

    def forward(self, x):
        x = x.unflatten(1, (8, 8))
        return self.head((x + self.attention(x, x, x, need_weights=False)[0]).mean(dim=1))


def test_networks_of_other_starts_are_matched_by_activations_too():
    for make_net in (make_normed, Attending):
        nets, _ = halves(make_net)
        fusion = cs.fuse(nets, inputs=X[HELD][:300], example=X[:2], steps=5)
        assert {"refit", "refit_activations", "refit_activations_head"} <= set(fusion.candidates)
        assert "left_out" not in fusion.details
    near = [train(rows, 0, steps=3) for rows in ROWS.values()]  # of one start
    assert "refit_activations" not in cs.fuse(near, inputs=X[HELD][:300], example=X[:2], steps=5).candidates


def test_information_that_is_a_sum_is_not_weighed_by_observations_again(nets, described):
    known = {name: cs.fisher(net, X[ROWS[name]], "diagonal") for name, net in nets.items()}
    of_described = cs.fuse(described, "fisher", fishers=known)
    of_plain = cs.fuse(nets, "fisher", fishers=known, example=X[:2])
    merged = [
        {name: np.asarray(values) for name, values in fusion.network.arrays.items()}
        for fusion in (of_described, of_plain, cs.fuse(described, "fisher", fishers=known, weights=[1, 2, 3]))
    ]
    assert all(np.array_equal(merged[0][name], values) for name, values in merged[1].items())
    assert not all(np.array_equal(merged[2][name], values) for name, values in merged[1].items())


# -- Inputs drawn from descriptions that are unlike real ones.


def train_small(x, y, start, width=32):
    with torch.random.fork_rng():
        torch.manual_seed(start)
        net = nn.Sequential(nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, 2))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net.eval()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_classes_that_are_not_gaussian_choose_no_network_that_is_much_worse(seed):
    x, y = make_moons(3000, noise=0.2, random_state=seed)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    rows = [
        torch.arange(1000),
        *(torch.nonzero((y == label) & (torch.arange(3000) < 2000)).flatten()[-300:] for label in (0, 1)),
    ]
    nets = [train_small(x[of_site], y[of_site], 0) for of_site in rows]
    described = [cs.describe(net, (x[of_site], y[of_site]), classes=2) for net, of_site in zip(nets, rows, strict=True)]
    assert described[0].description.own_error < 0.05
    fusion = cs.fuse(described)
    assert same_bytes(fusion.model, nets[0])
    assert described[0].description.class_mixtures
    assert "inputs drawn from descriptions are unlike real ones" not in fusion.verdict.text
    without_parts = [replace(one, description=replace(one.description, class_mixtures={})) for one in described]
    fusion = cs.fuse(without_parts)
    assert "inputs drawn from descriptions are unlike real ones" in fusion.verdict.text
    assert fusion.verdict.harmless is None
    errors = [float((net(x[2000:]).argmax(1) != y[2000:]).double().mean()) for net in (fusion.model, nets[0])]
    assert errors[0] < errors[1] + 0.05  # of such inputs a little harm is not seen


def test_of_sites_that_cannot_be_told_apart_that_of_most_observations_is_taken():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2600, 4, generator=generator)
    y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long()  # both classes have the same moments
    rows = [torch.arange(150), torch.arange(150, 1900), torch.arange(1900, 2050)]
    nets = [train_small(x[of_site], y[of_site], start) for start, of_site in enumerate(rows)]
    described = [cs.describe(net, (x[of_site], y[of_site])) for net, of_site in zip(nets, rows, strict=True)]
    fusion = cs.fuse(described)
    assert fusion.details["chosen"] == "site:model 1"
    assert fusion.verdict.harmless is None


def test_a_description_says_how_often_its_network_errs(nets, described, tmp_path):
    for name, net in nets.items():
        with torch.no_grad():
            wrong = net(X[ROWS[name]]).argmax(1) != Y[ROWS[name]]
        assert described[name].description.own_error == pytest.approx(float(wrong.double().mean()), abs=1e-3)
    cs.save(described["lund"], tmp_path / "lund.safetensors")
    loaded = cs.load(tmp_path / "lund.description.safetensors")
    assert loaded.own_error == described["lund"].description.own_error


def test_fusion_needs_no_gradients_of_the_caller(nets):
    with torch.no_grad():
        described = {name: cs.describe(net, (X[ROWS[name]], Y[ROWS[name]])) for name, net in nets.items()}
        fusion = cs.fuse(described, steps=5)
    assert [name for name in fusion.candidates if name.startswith("distill")]


def test_labels_beside_unlabelled_inputs_are_left_out(nets):
    of_both = cs.fuse(nets, example=X[:2], inputs=(X[HELD], Y[HELD]), steps=0)
    assert same_bytes(of_both.model, cs.fuse(nets, example=X[:2], inputs=X[HELD], steps=0).model)


@COPIES
def test_of_independent_networks_that_nobody_describes_one_is_taken():
    nets = [nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval() for _ in range(2)]
    symmetry = cs.symmetry(nets[0], torch.zeros(2, 4))
    (group,) = symmetry.groups
    copy = cs.permute(nets[0], symmetry, {group: [3, 1, 5, 0, 2, 4]})
    chosen = [cs.fuse(pair, example=torch.zeros(2, 4)).details["chosen"] for pair in ([nets[0], copy], nets)]
    assert set(chosen) <= {"site:model 0", "site:model 1"}
