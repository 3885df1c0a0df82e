"""Readable transcripts of one small auction per mechanism: a reviewer can check them with a pencil."""

from __future__ import annotations

import pytest

import privmarket as pm

# Five clients, budget 2. Unit costs rise from 0.1 to 0.9; total costs are 1, 0.1, 0.9, 0.75, 1.05.
BIDS = pm.Bids(valuation=[0.5, 0.1, 0.9, 0.3, 0.7], epsilon=[2.0, 1.0, 1.0, 2.5, 1.5])
BUDGET = 2.0

TRANSCRIPTS = {
    # All caps are at least 1. k = 4 fails (0.7·4 > 2·1), k = 3 holds (0.5·3 ≤ 2·2); ε = 1/2, pay min(2/3, 0.7/2).
    "pac": "0.5:0.35 0.5:0.35 - 0.5:0.35 -",
    # k = 5 // 2 = 2: total costs 0.1 and 0.75 win and are paid the next, 0.9.
    "vcg": "- 1:0.9 - 2.5:0.9 -",
    # 1·0.75 and 2·0.9 fit into 2, 3·1 does not.
    "k-plus-one-price": "- 1:0.9 - 2.5:0.9 -",
    # 0.3·1 and 0.5·3.5 fit into 2, 0.7·5.5 does not: unit price 0.5.
    "csra": "- 1:0.5 - 2.5:1.25 -",
    # 0.1·1 and 0.3·3.5 fit into 2, 0.5·5.5 does not: unit price min(2/3.5, 0.5).
    "proportional-share": "- 1:0.5 - 2.5:1.25 -",
    # Client 4 (v = 0.3) faces client 2 alone up to 0.5: 1·τ + 5·τ ≤ 2, so τ = 1/3 and it sells 2.5 for 2.5/3.
    # Client 2 (v = 0.1) faces nobody up to 0.3, where client 4 would start to sell and 2.5·τ + 5·τ > 2: τ = 0.3.
    "mean-field-menu": "- 1:0.3 - 2.5:0.8333 -",
    # ε = min(cap, c·v^(−1/3)) with c = 0.679, found by a root finder, spends 2; only client 2 is capped.
    "jsam": "0.8554:0.4277 1:0.1 0.7032:0.6329 1.014:0.3042 0.7646:0.5352",
}


def transcript(name: str) -> str:
    outcome = pm.mechanism(name).run(BIDS, BUDGET)
    pairs = zip(outcome.epsilon, outcome.payment, strict=True)
    return " ".join(f"{e:.4g}:{p:.4g}" if e > 0 else "-" for e, p in pairs)


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name):
    assert transcript(name) == TRANSCRIPTS[name]
