"""Server and clients of versions that may not be mixed: refused in words, on either side, before any sale."""

import logging

import pytest
from flwr.app import RecordDict

import privmarket as pm
from privmarket.flower import _wire as wire
from privmarket.flower._wire import Answer, WireError
from tests.unit.flower.toy import CLIENTS, Wire, client, server

CALL, ANSWER = wire.NAMES[pm.rounds.Terms], wire.NAMES[Answer]
MAJOR, MINOR, *_ = pm.__version__.split(".")
OTHERS = [f"{MAJOR}.{int(MINOR) + 1}.0", f"{int(MAJOR) + 1}.{MINOR}.0", "", None, 7, "\n1.0"]


def says(version, name, message):
    record = message.content.get(name)
    if record is not None and "version" in record:
        del record["version"]
        if version is not None:
            record["version"] = version


@pytest.mark.parametrize("version", OTHERS)
def test_a_client_refuses_a_server_of_another_version(version, caplog):
    grid = Wire(client(), tamper=lambda message: says(version, CALL, message))
    with caplog.at_level(logging.WARNING):
        result = pm.flower.run_in_process(server(rounds=3), grid.client_app, CLIENTS, grid=grid)
    assert not result.releases
    assert f"this one {pm.__version__} (server and clients need the same major and minor version)" in caplog.text


@pytest.mark.parametrize("version", OTHERS)
def test_a_server_refuses_a_client_of_another_version_and_sells_with_the_others(version, caplog):
    def old(reply):
        if reply.metadata.src_node_id == 1002:
            says(version, ANSWER, reply)

    grid = Wire(client(), after=old)
    result = pm.flower.run_in_process(server(), grid.client_app, CLIENTS, grid=grid)
    assert set(result.releases) == {"0", "1", "3", "4", "5"}
    assert result.declined["2"].startswith("it runs privmarket ")
    assert f"this server {pm.__version__}" in result.declined["2"]
    assert all(node != 1002 for node, _ in grid.orders())


def test_a_server_whose_clients_all_refuse_it_ends_and_names_both_versions():
    """As they answer where the client's version really is another one: by a refusal that carries it."""
    grid = Wire(
        client(),
        tamper=lambda message: says(OTHERS[0], CALL, message),
        after=lambda reply: says(OTHERS[0], wire.NAMES[wire.Refusal], reply),
    )
    result = pm.flower.run_in_process(server(rounds=3), grid.client_app, CLIENTS, grid=grid)
    assert len(result.records) == 1
    assert f"runs privmarket {OTHERS[0]}, this server {pm.__version__}" in result.notes[-1]


def test_patch_versions_may_be_mixed():
    patch = f"{MAJOR}.{MINOR}.99"
    grid = Wire(client(), tamper=lambda message: says(patch, CALL, message), after=lambda m: says(patch, ANSWER, m))
    result = pm.flower.run_in_process(server(), grid.client_app, CLIENTS, grid=grid)
    assert len(result.releases) == CLIENTS


def test_the_version_is_told_before_an_unknown_field():
    content = wire.put(RecordDict(), Answer("0", bids=False))
    content[ANSWER]["version"] = OTHERS[0]
    content[ANSWER]["colour"] = "blue"
    with pytest.raises(WireError, match=f"runs privmarket {OTHERS[0]}"):
        wire.take(content, Answer)
