"""A strategy for a ServerApp of one's own: the same fusion as without Flower, and bad replies named and left out."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.mixture import BayesianGaussianMixture
from torch.testing import assert_close

import consilience as cs
from consilience.errors import OptionError
from tests.federated.network_sites import SITES, make, trained
from tests.federated.rounds import mixture

flwr = pytest.importorskip("flwr.app")
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402

from consilience.federated.flower import FusionStrategy, model_of_record, model_record  # noqa: E402

NODES = {11: "a", 12: "b", 13: "c"}


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Make this process the one of a ServerApp."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """The nodes of an app, in this process; each runs the ClientApp that it is given."""

    def __init__(self, app):
        self.app, self.asked = app, []

    def get_node_ids(self):
        return list(NODES)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            self.asked.append(message.metadata.message_type)
            node = message.metadata.dst_node_id
            context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
            try:
                reply = self.app(message, context)
            except Exception as failure:
                reply = Message(Error(code=1, reason=str(failure)), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = node
            replies.append(reply)
        return replies


def app_of(train, evaluate=None):
    """Return a ClientApp that replies what `train` makes of the site's name and the arrays that came."""
    app = ClientApp()

    @app.train()
    def _train(message, context):
        arrays, metrics = train(NODES[context.node_id], message.content["arrays"])
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

    @app.evaluate()
    def _evaluate(message, context):
        value = 1.0 if evaluate is None else evaluate(NODES[context.node_id], message.content["arrays"])
        metrics = MetricRecord({"score": value, "num-examples": 10})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def started(strategy, app, rounds=1, arrays=None):
    return strategy.start(Grid(app), initial_arrays=arrays or ArrayRecord(), num_rounds=rounds)


def test_networks_of_an_ordinary_app_are_fused_as_without_flower():
    nets = {site: trained(number, *data) for number, (site, data) in enumerate(SITES.items())}

    def train(site, arrays):
        assert set(arrays) == set(make().state_dict())
        return ArrayRecord(nets[site].state_dict()), {"num-examples": len(SITES[site][0])}

    lines = []
    strategy = FusionStrategy(
        "consensus", module=make, options={"example": torch.zeros(1, 3)}, sites=NODES, say=lines.append
    )
    result = started(strategy, app_of(train), arrays=ArrayRecord(make().state_dict()))
    counts = {site: len(x) for site, (x, _) in SITES.items()}
    expected = cs.fuse(nets, "consensus", example=torch.zeros(1, 3), n_observations=counts)
    assert_close(result.arrays.to_torch_state_dict(), expected.model.state_dict())
    assert strategy.reports[0].sites == ("a", "b", "c")
    assert result.train_metrics_clientapp[1] == {"took-part": 3, "left-out": 0}
    assert result.evaluate_metrics_clientapp[1]["score"] == 1.0
    assert any("verdict: " in line for line in lines)


def test_models_of_any_kind_travel_as_their_files_and_come_back():
    models = {site: mixture(number) for number, site in enumerate("abc")}
    came = []

    def train(site, arrays):
        came.append(model_of_record(arrays))
        return model_record(models[site]), {"num-examples": 90}

    strategy = FusionStrategy("kmeans", sites=NODES)
    result = started(strategy, app_of(train), rounds=2)
    expected = cs.fuse(models, "kmeans")
    np.testing.assert_array_equal(model_of_record(result.arrays).natural, expected.posterior.natural)
    assert came[:3] == [None] * 3
    np.testing.assert_array_equal(came[3].natural, expected.posterior.natural)
    assert len(strategy.reports) == 2


def test_bad_replies_are_named_and_left_out_and_the_others_are_fused():
    other = BayesianGaussianMixture(n_components=2, max_iter=1000, random_state=0).fit(
        np.random.default_rng(0).normal(size=(90, 3))
    )

    def train(site, arrays):
        if site == "b":
            raise RuntimeError("no data")
        return model_record(mixture(0 if site == "a" else 1)), {"num-examples": 90}

    lines = []
    strategy = FusionStrategy("kmeans", sites=NODES, say=lines.append)
    assert model_of_record(started(strategy, app_of(train)).arrays) is not None
    assert strategy.reports[0].sites == ("a", "c")

    bad = {
        "another kind": ArrayRecord({"w": flwr.Array(np.zeros(3))}),
        "no array of bytes": ArrayRecord({"consilience.model": flwr.Array(np.zeros(3))}),
        "no model": ArrayRecord({"consilience.model": flwr.Array(np.zeros(3, dtype=np.uint8))}),
        "another family": model_record(other),
        "nothing": ArrayRecord(),
    }
    for arrays in bad.values():
        sent = {"a": model_record(mixture(0)), "b": arrays, "c": model_record(mixture(1))}
        strategy = FusionStrategy("kmeans", sites=NODES, quorum=2)
        started(strategy, app_of(lambda site, _, sent=sent: (sent[site], {"num-examples": 90})))
        (report,) = strategy.reports
        assert report.sites == ("a", "c")
        assert report.left_out[0].site == "b"
        assert report.left_out[0].reasons


def test_a_network_of_another_architecture_is_left_out():
    nets = {site: trained(number, *data) for number, (site, data) in enumerate(SITES.items())}
    nets["b"] = torch.nn.Linear(3, 3)
    strategy = FusionStrategy("average", module=make, sites=NODES, quorum=2)
    started(strategy, app_of(lambda site, _: (ArrayRecord(nets[site].state_dict()), {"num-examples": 250})))
    assert strategy.reports[0].sites == ("a", "c")
    assert "has other arrays than the architecture" in strategy.reports[0].left_out[0].reasons[0]


def test_too_few_good_replies_leave_the_model_as_it_was():
    lines = []
    strategy = FusionStrategy("kmeans", sites=NODES, quorum=3, say=lines.append)

    def train(site, arrays):
        if site == "a":
            raise RuntimeError("gone")
        return model_record(mixture(0)), {"num-examples": 90}

    begun = model_record(mixture(5))
    result = started(strategy, app_of(train), arrays=begun)
    assert strategy.fusion is None
    assert result.arrays is None or list(result.arrays) == []
    assert any("2 replies and 1 failures, and it takes 3 replies" in line for line in lines)
    strategy = FusionStrategy("kmeans", sites=NODES, say=lines.append)
    started(strategy, app_of(lambda *_: (model_record(mixture(0)), {"num-examples": 90})))
    assert strategy.fusion is None  # one file from three sites counts once
    assert strategy.reports[0].problems


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(OptionError, match="has a module"):
        FusionStrategy(options={"module": make})
    with pytest.raises(OptionError, match="expected names of letters"):
        FusionStrategy(sites={1: "../a"})


SIMULATION = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from tests.federated.rounds import mixture
from consilience.federated.flower import FusionStrategy, model_of_record, model_record

client, server = ClientApp(), ServerApp()

@client.train()
def train(message, context):
    arrays = model_record(mixture(int(context.node_config["partition-id"])))
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 90})}), reply_to=message)

@client.evaluate()
def evaluate(message, context):
    count = len(model_of_record(message.content["arrays"]).natural)
    metrics = MetricRecord({"num-examples": 90, "components": count})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)

@server.main()
def main(grid, context):
    strategy = FusionStrategy("kmeans", min_train_nodes=3, min_available_nodes=3)
    result = strategy.start(grid, initial_arrays=ArrayRecord(), num_rounds=1)
    (report,) = strategy.reports
    print("SITES", len(report.sites), result.evaluate_metrics_clientapp[1]["components"])

run_simulation(server, client, 3, backend_config={"client_resources": {"num_cpus": 1}})
"""


@pytest.mark.slow
@pytest.mark.alone
def test_flowers_own_simulation_runs_it(tmp_path):
    pytest.importorskip("ray", reason="Flower simulates with ray: pip install ray")
    (tmp_path / "app.py").write_text(SIMULATION)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()]), "FLWR_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "app.py")], env=environment, capture_output=True, text=True, timeout=500
    )
    assert "SITES 3 3.0" in done.stdout, done.stderr[-2000:]
