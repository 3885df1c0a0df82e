"""Which section of Debian does a package belong to? A small network for words, trained from scratch.

Each maintainer is a client; the one-line descriptions of its packages are its private records.

    privmarket data get packages
    python packages.py
"""

from torch import Tensor, nn

import privmarket as pm

WORDS = 1024
WIDTH = 8


class MeanOverWords(nn.Module):
    """(rows, words, width) → (rows, width)."""

    def forward(self, vectors: Tensor) -> Tensor:
        """The mean over all places."""
        return vectors.mean(dim=1)


def build(outputs: int) -> nn.Module:
    """A vector for each word, their mean, and one layer on top: 8,282 numbers for ten sections."""
    return nn.Sequential(nn.Embedding(WORDS, WIDTH, padding_idx=0), MeanOverWords(), nn.Linear(WIDTH, outputs))


def task(seed: int = 0) -> pm.Task:
    """300 descriptions are the buyer's own, a fifth is for testing, the rest stays with the maintainers."""
    path = pm.tasks.data_folder() / "packages" / "packages.csv"
    if not path.exists():
        raise SystemExit("no descriptions: privmarket data get packages")
    return pm.Task.from_csv(
        path, schema="packages.toml", public_share=300 / 24_202, test_share=0.2, model=build, seed=seed
    )


if __name__ == "__main__":
    packages = task()
    print("\n".join(packages.describe()))
    result = pm.federate(packages, trust="aggregate", wallet=2.0, rounds=10, budget=204)
    score = packages.score
    print(f"your own {len(packages.public)} records: {score.heading} {score.format(result.score_before)}")
    print(f"with {result.spent:,.2f} credits: {score.heading} {score.format(result.score)}")
    result.save_model("model.safetensors")
