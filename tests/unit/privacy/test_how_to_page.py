"""The code on the how-to page runs."""

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "account-for-sales.md"


def test_the_pages_code_runs_in_order():
    names = {"buffer": np.zeros(10, dtype=np.float32), "sigma": 1.0, "clip_norm": 1.0, "records": 100}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(block, names)
    assert names["noise_multiplier"](1.0) == pytest.approx(3.73, abs=0.005)
    assert (names["sold"] > 0).all()
    assert names["buffer"].std() > 0
