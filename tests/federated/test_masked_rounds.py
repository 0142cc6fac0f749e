"""Masked rounds over a folder: the model of the open round, sites that leave at any step, and kills on both sides."""

import json
import stat
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.naive_bayes import GaussianNB

import consilience as cs
from consilience.errors import InputError, OptionError
from consilience.federated import Masked, RoundError, SumNoise
from consilience.federated.folder.masked_site import FolderMailbox, file_folder, rows_folder
from consilience.federated.folder.storage import LocalStorage
from consilience.federated.masking.messages import STEPS
from tests.federated import network_sites, test_em
from tests.federated.masked_sites import write_keys

SITES = ("bergen", "lund", "oslo", "turku")
TIMEOUT = 60.0


class Killed(BaseException):
    """What ends a process at a point of a test."""


class Round:
    """A folder with keys and files of four sites, and threads that are sites."""

    def __init__(self, folder, *, with_files=True):
        self.folder, self.place = folder, folder / "place"
        self.keys = write_keys(folder / "keys", SITES)
        self.files = {site: folder / f"{site}.safetensors" for site in SITES}
        self.results = {}
        for seed, (_, path) in enumerate(self.files.items()) if with_files else ():
            rng = np.random.default_rng(seed)
            y = rng.integers(3, size=60)
            X = rng.normal(size=(60, 2)) + y[:, None]
            cs.save(GaussianNB().fit(X, y), path, data=(X, y))

    @property
    def output(self):
        return self.folder / "fused.safetensors"

    def site(self, name, **options):
        """Send the file of a site; keep what comes of it."""
        key = self.folder / "keys" / f"{name}.key"
        options = {"signing_key": key, "signing_keys": self.keys, "timeout": TIMEOUT, **options}
        try:
            self.results[name] = cs.federated.send_masked(self.files[name], self.place, name, **options)
        except (InputError, Killed) as error:
            self.results[name] = error

    def serve(self, **options):
        """Serve the round."""
        options = {"expect": self.files["lund"], "deadline": TIMEOUT, "poll": 0.02, **options}
        masked = options.pop("masked", Masked(self.keys))
        return cs.federated.serve_folder(self.place, self.output, sites=SITES, masked=masked, **options)

    def run(self, sites=SITES, *, serve=None, **options):
        """Serve the round with sites in threads."""
        threads = [threading.Thread(target=self.site, args=(name,), kwargs=options) for name in sites]
        for thread in threads:
            thread.start()
        try:
            return self.serve(**(serve or {}))
        finally:
            for thread in threads:
                thread.join()

    def left_over(self):
        """Return what is still in folders of sites, beside the record of opened sums."""
        return sorted(path.parent.name for path in self.folder.glob("*.masked/*") if path.name != "opened")


def leave_after(monkeypatch, last_steps):
    """Let sites die once they have sent their message of a step."""
    send = FolderMailbox.send

    def send_and_die(self, number, data):
        if number > last_steps.get(self.site, 99):
            raise Killed
        send(self, number, data)

    monkeypatch.setattr(FolderMailbox, "send", send_and_die)


def test_a_masked_round_gives_the_model_of_the_open_one(tmp_path):
    made = Round(tmp_path)
    result = made.run(receive=tmp_path / "back.safetensors")
    plain = cs.fuse(list(made.files.values()))
    assert_allclose(result.fusion.model.theta_, plain.model.theta_, rtol=1e-15)
    assert_allclose(result.fusion.model.var_, plain.model.var_, rtol=1e-14)
    assert result.report.sites == SITES
    assert result.fusion.verdict.code == "exact"
    assert (tmp_path / "back.safetensors").read_bytes() == made.output.read_bytes()
    assert not made.left_over()
    assert not list(made.folder.glob("*.work"))
    report = json.loads((tmp_path / "fused.round.json").read_text())
    assert report["status"] == "fused"
    assert report["masked"]["threshold"] == 3
    assert report["masked"]["n_observations"] == 240.0
    assert "masked: the server saw the sum alone" in "\n".join(result.report.lines())


def test_a_round_that_has_ended_ends_again_with_the_same_bytes(tmp_path):
    made = Round(tmp_path)
    made.run()
    before = made.output.read_bytes()
    made.site("lund")
    assert "this round is over; nothing was sent" in str(made.results["lund"])
    again = made.serve()
    assert again.fusion is None
    assert again.report.sites == SITES
    assert made.output.read_bytes() == before


@pytest.mark.parametrize("last", [0, 2, 3, *(pytest.param(last, marks=pytest.mark.slow) for last in (1, 4))])
def test_a_site_that_leaves_is_named_and_the_others_are_summed(tmp_path, monkeypatch, last):
    made = Round(tmp_path)
    leave_after(monkeypatch, {"oslo": last})
    result = made.run(serve={"deadline": 2.0})
    summed = SITES if last >= 3 else tuple(site for site in SITES if site != "oslo")
    assert result.report.sites == summed
    plain = cs.fuse([made.files[site] for site in summed])
    assert_allclose(result.fusion.model.theta_, plain.model.theta_, rtol=1e-15)
    told = "\n".join(result.report.lines())
    assert ("sent nothing: oslo" if last == 0 else f"oslo: step {last + 1}") in told
    assert isinstance(made.results["oslo"], Killed)


def test_below_the_threshold_the_round_fails_and_says_so_to_the_sites(tmp_path, monkeypatch):
    made = Round(tmp_path)
    leave_after(monkeypatch, {"oslo": 2, "turku": 2})
    with pytest.raises(RoundError, match="masked numbers of 2 sites came, and this sum takes 3"):
        made.run(serve={"deadline": 1.0})
    assert isinstance(made.results["lund"], InputError)
    assert "masked sum 1 failed" in str(made.results["lund"])
    assert made.left_over() == ["oslo.safetensors.masked", "turku.safetensors.masked"]  # of the killed ones
    monkeypatch.undo()
    assert made.run().report.sites == SITES  # the same command again is another try, with new keys
    assert not made.left_over()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_a_site_that_is_killed_goes_on_where_it_was(tmp_path, monkeypatch, step, when):
    made, send, died = Round(tmp_path), FolderMailbox.send, []

    def send_or_die(self, number, data):
        dies = self.site == "lund" and number == step and not died
        if when == "after" or not dies:
            send(self, number, data)
        if dies:
            died.append(number)
            raise Killed

    monkeypatch.setattr(FolderMailbox, "send", send_or_die)

    def twice(name):
        made.site(name)
        if isinstance(made.results[name], Killed):
            secret = next((made.folder / f"{name}.safetensors.masked").glob("*/secret.json"))
            assert stat.S_IMODE(secret.stat().st_mode) == 0o600
            assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
            made.site(name)

    threads = [threading.Thread(target=twice, args=(name,)) for name in SITES]
    for thread in threads:
        thread.start()
    result = made.serve()
    for thread in threads:
        thread.join()
    assert died == [step]
    assert result.report.sites == SITES
    assert not any(isinstance(one, BaseException) for one in made.results.values())
    assert not made.left_over()
    assert_allclose(result.fusion.model.theta_, cs.fuse(list(made.files.values())).model.theta_, rtol=1e-15)


SERVER_FILES = [f"server/1/{name}" for name in ("masked.json", "agreed-1", "agreed-2/lund", "agreed-3", "agreed-4")]


@pytest.mark.parametrize(
    "name",
    [
        *(SERVER_FILES[0], "server/1/fused.safetensors", "server/1/round.json"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in SERVER_FILES[1:]),
    ],
)
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_a_server_that_is_killed_goes_on_where_it_was(tmp_path, monkeypatch, name, when):
    made, put, died = Round(tmp_path), LocalStorage.put, []

    def put_or_die(self, target, data):
        dies = target == name and not died
        if when == "after" or not dies:
            put(self, target, data)
        if dies:
            died.append(target)
            raise Killed

    monkeypatch.setattr(LocalStorage, "put", put_or_die)
    threads = [threading.Thread(target=made.site, args=(site,)) for site in SITES]
    for thread in threads:
        thread.start()
    with pytest.raises(Killed):
        made.serve()
    made.serve()
    for thread in threads:
        thread.join()
    assert not any(isinstance(one, BaseException) for one in made.results.values())
    fused = cs.load(made.output)
    assert_allclose(fused.moments["rows"].mean, cs.fuse(list(made.files.values())).model.theta_, rtol=1e-15)


# What a site refuses


def test_an_open_contribution_is_not_sent_to_a_masked_round_nor_a_masked_one_to_an_open_round(tmp_path):
    made = Round(tmp_path)
    made.run()
    with pytest.raises(InputError, match="this round is masked, and what you would send is not; nothing was sent"):
        cs.federated.send_folder(made.files["lund"], made.place, "lund")
    (tmp_path / "open" / "server").mkdir(parents=True)
    (tmp_path / "open" / "server" / "plan.json").write_text(json.dumps({"sites": ["lund"], "limits": {}}))
    made.place = tmp_path / "open"
    made.site("lund", timeout=1.0)
    assert "this round is not masked; nothing was sent" in str(made.results["lund"])
    assert not (made.place / "sites").exists()


def test_a_server_with_another_key_of_a_site_gets_nothing(tmp_path):
    made = Round(tmp_path)
    others = write_keys(tmp_path / "other keys", reversed(SITES))
    (others / "lund.pub").write_bytes((made.keys / "lund.pub").read_bytes())
    (others / "oslo.pub").unlink()
    with pytest.raises(RoundError):
        made.run(signing_keys=others, serve={"deadline": 1.0})
    assert "has another signing key of bergen, oslo, turku than this site knows" in str(made.results["lund"])
    assert not list((made.place / "sites" / "lund").iterdir())


def test_without_keys_of_its_own_a_site_is_warned_and_all_sites_see_the_same_number(tmp_path):
    made = Round(tmp_path)
    made.run(signing_keys=None)
    told = {result.warnings[-1] for result in made.results.values()}
    assert len(told) == 1
    assert "which could play them all" in told.pop()


def test_two_sites_are_warned_that_each_can_compute_the_other(tmp_path):
    made = Round(tmp_path)
    lines = []
    threads = [threading.Thread(target=made.site, args=(site,)) for site in SITES[:2]]
    for thread in threads:
        thread.start()
    masked = Masked(made.keys)
    result = cs.federated.serve_folder(
        made.place, made.output, sites=SITES[:2], masked=masked, expect=made.files["lund"], poll=0.02, say=lines.append
    )
    for thread in threads:
        thread.join()
    assert result.report.sites == SITES[:2]
    assert any("masks keep the server from it, and not the other site" in line for line in lines)
    assert "masks keep the server from it" in made.results["lund"].warnings[0]


def test_a_file_that_does_not_fit_sends_nothing(tmp_path):
    made = Round(tmp_path)
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = np.arange(60) % 3
    cs.save(GaussianNB().fit(X, y), made.files["oslo"], data=(X, y))
    result = made.run(serve={"deadline": 2.0})
    assert result.report.missing == ("oslo",)
    assert "its columns is not that of the expected file: 3, expected 2" in str(made.results["oslo"])


def test_the_folder_of_a_site_may_not_lie_where_others_read(tmp_path):
    made = Round(tmp_path)
    made.site("lund", work=made.place / "sites" / "lund" / "mine")
    assert "where others read" in str(made.results["lund"])


# What a server refuses


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"robust": True}, "robust: compares what single sites send, and under masks the server sees the sum alone"),
        ({"method": "kl"}, "method 'kl': is for open rounds"),
        ({"rounds": 3}, "rounds: a masked round is one sum"),
        ({"expect": None}, "expect: is needed: a file that says what the numbers under masks are"),
        ({"quorum": 2}, "quorum: expected more than half of the 4 sites"),
        ({"then": "head"}, "which have no request .head.; head is for"),
    ],
    ids=str,
)
def test_what_masked_rounds_cannot_do_is_said_before_anything_is_published(tmp_path, options, match):
    made = Round(tmp_path)
    with pytest.raises((OptionError, InputError, cs.errors.UnsupportedError), match=match):
        made.serve(**options)


def test_sites_without_keys_are_named(tmp_path):
    made = Round(tmp_path)
    (made.keys / "oslo.pub").unlink()
    with pytest.raises(InputError, match=r"has no key of oslo; put NAME.pub there"):
        made.serve()
    (made.keys / "oslo.pub").write_bytes((made.keys / "lund.pub").read_bytes())
    with pytest.raises(InputError, match="is the key of lund; every site needs its own"):
        made.serve()
    for text in ("nonsense", "no key at all"):
        (made.keys / "oslo.pub").write_text(text)
        with pytest.raises(InputError, match="is no OpenSSH public key"):
            made.serve()


def test_a_group_that_differs_by_one_site_from_a_published_one_is_not_opened(tmp_path, monkeypatch):
    made, ledger = Round(tmp_path), tmp_path / "ledger.jsonl"
    made.run(serve={"ledger": ledger})
    leave_after(monkeypatch, {"oslo": 2})
    made.place = tmp_path / "second"
    with pytest.raises(RoundError, match="a model was published that differs by oslo only"):
        made.run(serve={"deadline": 1.0, "ledger": ledger})
    assert not (made.place / "server" / "1" / "agreed-3").exists()


def test_a_message_of_a_stranger_is_refused_and_named(tmp_path):
    made = Round(tmp_path)
    folder = made.place / "sites" / "oslo"
    folder.mkdir(parents=True)
    digest = "0" * 64
    (folder / digest).write_bytes(b"nothing")
    (folder / f"1-1-{digest}").touch()
    lines = []
    result = made.run(sites=[site for site in SITES if site != "oslo"], serve={"deadline": 1.5, "say": lines.append})
    assert result.report.sites == tuple(site for site in SITES if site != "oslo")
    assert "oslo: keys its content is not what was announced; send it again" in lines
    assert "left out: oslo: step 1, keys: its content is not what was announced" in "\n".join(result.report.lines())


# Requests


@pytest.mark.parametrize(
    "killed",
    [pytest.param("nobody", marks=pytest.mark.slow), "a site", pytest.param("the server", marks=pytest.mark.slow)],
)
def test_masked_em_over_a_folder_is_that_of_open_answers_whoever_is_killed(tmp_path, monkeypatch, killed):
    send, put, died = FolderMailbox.send, LocalStorage.put, []

    def send_or_die(self, number, data):
        if killed == "a site" and self.site == "site-1" and number == 7 and not died:  # step 2 of the second sum
            died.append(number)
            raise Killed
        send(self, number, data)

    def put_or_die(self, name, data):
        if killed == "the server" and name == "server/2/agreed-3" and not died:
            died.append(name)
            raise Killed
        put(self, name, data)

    monkeypatch.setattr(FolderMailbox, "send", send_or_die)
    monkeypatch.setattr(LocalStorage, "put", put_or_die)
    keys = write_keys(tmp_path / "keys", test_em.DATA)
    start = test_em.fused().posterior
    cs.save(start, tmp_path / "start.safetensors")
    results = {}

    def again(work):
        try:
            return work()
        except Killed:
            return work()

    def site(name):
        results[name] = again(lambda: answer(name))

    def answer(name):
        return cs.federated.answer_masked(
            tmp_path / "place",
            name,
            test_em.DATA[name],
            signing_key=tmp_path / "keys" / f"{name}.key",
            signing_keys=keys,
            work=tmp_path / f"{name}.masked",
            min_count=0,
            timeout=TIMEOUT,
            receive=tmp_path / f"{name}.back",
        )

    threads = [threading.Thread(target=site, args=(name,)) for name in test_em.DATA]
    for thread in threads:
        thread.start()
    options = {"expect": tmp_path / "start.safetensors", "then": "em:3", "poll": 0.02}
    place, output = tmp_path / "place", tmp_path / "em.safetensors"
    result = again(
        lambda: cs.federated.serve_folder(place, output, sites=sorted(test_em.DATA), masked=Masked(keys), **options)
    )
    for thread in threads:
        thread.join()
    fused = cs.load(tmp_path / "em.safetensors")
    in_the_open = cs.federated.exchange(
        "em", cs.load(tmp_path / "start.safetensors"), test_em.DATA, rounds=3, min_count=0
    )
    assert test_em.relative(fused.natural, in_the_open.natural) < test_em.ROUNDING
    assert [report.number for report in result.reports] == [1, 2, 3]
    assert bool(died) == (killed != "nobody")
    assert {one.sums for one in results.values()} == {3}
    assert (tmp_path / "site-0.back").read_bytes() == (tmp_path / "em.safetensors").read_bytes()
    assert {path.name for path in tmp_path.glob("site-*.masked/*")} == {"opened"}


def choice_of_networks(folder):
    """Return the file of a fused network, the own networks of sites, and rows that they held out."""
    fused = network_sites.fused()
    cs.save(fused, folder / "start.safetensors")
    held = {site: network_sites.rows(10 + seed, 60 + seed) for seed, site in enumerate(network_sites.SITES)}
    return fused, {site: network_sites.own(site) for site in held}, held


def choice_of_classifiers(folder):
    """Return the file of a fused classifier, the own ones of sites, and rows that they held out."""
    parts = {site: cs.hold_out(*network_sites.rows(seed, 300)) for seed, site in enumerate("abc")}
    own = {site: cs.describe(GaussianNB().fit(*part.train), part.train) for site, part in parts.items()}
    fused = cs.fuse(own)
    fused.save(folder / "start.safetensors")
    return fused, own, {site: part.held_out for site, part in parts.items()}


@pytest.mark.parametrize("make", [choice_of_networks, choice_of_classifiers])
def test_under_masks_sites_compare_one_model_with_their_own(make, tmp_path):
    fused, own, held = make(tmp_path)
    keys, told, results = write_keys(tmp_path / "keys", held), {site: [] for site in held}, {}

    def site(name):
        results[name] = cs.federated.answer_masked(
            tmp_path / "place",
            name,
            held[name],
            module=own[name],
            signing_key=tmp_path / "keys" / f"{name}.key",
            signing_keys=keys,
            work=tmp_path / f"{name}.masked",
            timeout=TIMEOUT,
            say=told[name].append,
        )

    threads = [threading.Thread(target=site, args=(name,)) for name in held]
    for thread in threads:
        thread.start()
    options = {"expect": tmp_path / "start.safetensors", "then": "choose", "poll": 0.02, "masked": Masked(keys)}
    result = cs.federated.serve_folder(tmp_path / "place", tmp_path / "out.safetensors", sites=list(held), **options)
    for thread in threads:
        thread.join()
    open_answers = cs.federated.exchange("choose", fused, held, module=own)
    losses = np.average(
        [[one["own"], one["chosen"]] for one in open_answers.details["held_out"]["sites"]],
        axis=0,
        weights=[len(rows[1]) for rows in held.values()],
    )
    assert f"{losses[1]:.4g} loss (what each site has today {losses[0]:.4g})" in result.report.verdict
    assert "At which sites the own model is better no sum tells" in result.report.verdict
    assert any(line == f"verdict: {result.report.verdict}" for line in result.report.lines())
    for name, lines in told.items():
        assert any(line.startswith(f"sum 1: error on {len(held[name][1])} own rows: own model ") for line in lines)


def test_noise_is_told_before_anything_is_sent(tmp_path):
    import torch

    from tests.federated import network_sites

    made = Round(tmp_path, with_files=False)
    torch.manual_seed(0)
    start = network_sites.make()
    symmetry = cs.symmetry(start, torch.zeros(1, 3))
    for site in SITES:
        cs.save(start, made.files[site], symmetry=symmetry)
    said = []
    result = made.run(say=said.append, serve={"masked": Masked(made.keys, noise=SumNoise(1.0, 1e-5, 1.0))})
    assert any("(epsilon 1, delta 1e-05) differential privacy of what each site sends" in line for line in said)
    assert any("the sum will say little" in line for line in said)
    assert result.report.masked["noise"] == {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.std(np.asarray(cs.load(made.output).arrays["0.bias"])) > 0.1


def test_nothing_that_a_site_publishes_tells_its_numbers(tmp_path):
    """Files of one site in the place have none of its sums, nor those of another site."""
    made = Round(tmp_path)
    made.run()
    numbers = {
        values.tobytes()
        for site in SITES
        for _, array in cs.load(made.files[site]).tensors()
        for values in np.ravel(array)
        if values not in (0.0, 1.0)
    }
    for path in Path(made.place / "sites").rglob("*"):
        if path.is_file() and path.stat().st_size:
            data = path.read_bytes()
            assert not any(number in data for number in numbers)


@pytest.mark.parametrize("folder", ["mine", Path("mine")])
def test_the_folder_of_a_site_is_the_one_given_or_has_the_name_of_its_file_or_key(folder):
    assert file_folder(folder, "models/oslo.safetensors") == rows_folder(folder, "oslo") == Path("mine")
    assert file_folder(None, "models/oslo.safetensors") == Path("models/oslo.safetensors.masked")
    assert rows_folder(None, "keys/oslo") == Path("oslo.masked")
