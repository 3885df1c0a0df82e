"""What `flwr run` would pack: no wallet and no policy of a site."""

import io
import logging
import zipfile
from importlib.resources import files

import pytest
from flwr.cli.build import build_fab_from_disk

import privmarket as pm
from privmarket.errors import ConfigurationError
from privmarket.flower import _bundle as bundle
from privmarket.flower._app_folder import run_app
from privmarket.flower._engine import write_app
from tests.unit.flower.guarded import SITE, ask, plain_app
from tests.unit.flower.toy import client, play, server

EXAMPLES = files("privmarket") / "examples"
APPS = sorted(path.name for path in EXAMPLES.iterdir() if path.name.startswith("flower-"))
OWN = ("wallet-0.jsonl", "out/flower-wallets/client-3.jsonl", "site.toml", "seller.toml", "seller.pem", "a.sums")


def packed(folder):
    """The names of the files that Flower itself puts into the bundle."""
    return zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder))).namelist()


def with_own_files(folder):
    for name in OWN:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text('{"kind": "opened"}\n')


@pytest.mark.parametrize("name", APPS)
def test_no_example_packs_files_of_a_site(name, tmp_path):
    for path in EXAMPLES.joinpath(name).rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and "out" not in path.parts:
            place = tmp_path / path.relative_to(EXAMPLES / name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    with_own_files(tmp_path)
    names = packed(tmp_path)
    assert not set(names) & set(OWN)
    assert any(one.endswith(".py") for one in names)


def test_what_would_be_packed_is_what_flower_packs(tmp_path):
    app = write_app(tmp_path, "", {})
    with_own_files(app)
    here = {name for name in OWN if bundle.packed_into(app / name) == app}
    assert here == set(packed(app)) & set(OWN) == {OWN[0], OWN[1], OWN[2], OWN[3]}
    (app / ".gitignore").write_text("*.jsonl\n")
    assert {name for name in OWN if bundle.packed_into(app / name)} == set(packed(app)) & set(OWN)
    project = app / "pyproject.toml"
    (app / ".gitignore").unlink()
    project.write_text(project.read_text().replace("[tool.flwr.app]", '[tool.flwr.app]\nfab-exclude = ["s*.toml"]'))
    assert {name for name in OWN if bundle.packed_into(app / name)} == set(packed(app)) & set(OWN) == {*OWN[:2]}
    assert bundle.packed_into(tmp_path.parent / "wallet-0.jsonl") is None


@pytest.mark.parametrize("engine", ["simulation", "deployment"])
def test_a_run_that_would_pack_a_wallet_is_refused(engine, tmp_path):
    app = write_app(tmp_path / "app", "", {})
    with_own_files(app)
    with pytest.raises(ConfigurationError, match="send it to every node") as caught:
        run_app(app, engine, 2, {}, tmp_path / "out", 10.0)
    assert ".gitignore" in caught.value.hint


def test_clients_and_guards_warn_once(tmp_path, caplog):
    app = write_app(tmp_path / "app", "", {})
    (app / "site.toml").write_text(SITE)
    guarded = plain_app([pm.flower.GuardMod(policy=app / "site.toml")])
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ask(guarded)
        play(client(wallet=lambda context: pm.privacy.WalletFile(app / "w.jsonl", 8.0)), server(rounds=1))
    logged = [record for record in caplog.records if record.name == "privmarket.client"]
    lines = [record.getMessage() for record in logged if "packs and sends" in record.getMessage()]
    assert sorted(line.partition(" lies")[0].rpartition("/")[2] for line in lines) == [
        "site.toml",
        "w.jsonl",
        "wallet-0.jsonl",
    ]
