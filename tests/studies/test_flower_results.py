"""The page of results on Flower follows from its files, and the files say that every promise was kept."""

import json
import shutil
from pathlib import Path

from privmarket_studies import flower_engines, flower_results

FOLDER = Path(__file__).parents[2] / "docs/results/flower"


def test_the_page_is_rendered_from_the_files(tmp_path):
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert flower_results.render(FOLDER) == page
    assert "BROKEN" not in page
    # A promise that was not kept would be seen.
    for path in FOLDER.glob("*.json"):
        shutil.copy(path, tmp_path)
    sums = json.loads((FOLDER / "sums.json").read_text(encoding="utf-8"))
    sums["verdicts"]["money adds up"] = False
    (tmp_path / "sums.json").write_text(json.dumps(sums), encoding="utf-8")
    assert "| money adds up | BROKEN |" in flower_results.render(tmp_path)


def test_engines_are_the_same_only_if_every_bit_is():
    one = {"weights_sha256": "ab", "rounds": [{"paid_micro": {"0": 1}}]}
    assert flower_engines.same({"a": one, "b": dict(one)})
    assert not flower_engines.same({"a": one, "b": {**one, "weights_sha256": "ac"}})
    assert not flower_engines.same({"a": one, "b": {**one, "rounds": [{"paid_micro": {"0": 2}}]}})


def test_the_how_to_page_says_of_the_template_what_was_measured():
    runs = json.loads((FOLDER / "template.json").read_text(encoding="utf-8"))["runs"]
    page = (FOLDER.parents[1] / "how-to/flower.md").read_text(encoding="utf-8")
    assert "reaches more than 80 % on MNIST with 5 clients of 480 records and a lifetime ε below 8" in page
    assert min(run["accuracy"] for run in runs) > 0.8
    assert max(run["lifetime_epsilon"] for run in runs) < 8.0
