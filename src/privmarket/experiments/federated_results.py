"""The page about the kept federated runs, rendered from their result files: no figure is typed by hand.

`privmarket federate … --save FILE` writes a result file; this module, run with a folder as its argument, writes
README.md there from all of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_HEAD = """# Federated runs that were kept

Valid record-level DP unless the mode says otherwise: every sale is (ε, δ = 1e-5)-DP for each record of its client.
Rendered from the files beside it: `python -m privmarket.experiments.federated_results docs/results/federated`.
One seed each. The settings were chosen by comparing test accuracy, without a validation split, so these figures are
somewhat optimistic. Minutes are of a machine shared with other work.

| file | accuracy | mode | α | types | mechanism | sellers a round | ever sold | paid | largest total ε | minutes |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def render(folder: Path) -> str:
    """The page's text."""
    results = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    rows = "".join(_row(path.name, result) for path, result in results.items())
    commands = "".join(f"- `{path.stem}`: `{result['command']}`\n" for path, result in results.items())
    return f"{_HEAD}{rows}\n## The commands\n{commands}"


def _row(name: str, result: dict[str, Any]) -> str:
    config = result["config"]
    paid = config["mode"] != "no-dp"
    cells = [
        f"[{name}]({name})",
        f"{result['accuracy']:.2%}",
        config["mode"] + ("" if config["wallet"] is None else f", wallet ε ≤ {config['wallet']:g}"),
        f"{config['alpha']:g}",
        config["types"],
        config["mechanism"] if paid else "–",
        f"{result['sellers_per_round']:.1f}" if paid else "everyone",
        str(result["clients_that_sold"]) if config["mode"] == "private" else "–",
        f"{result['spent']:,.0f}" if paid else "–",
        f"{result['largest_epsilon_spent']:.2f}" if config["mode"] == "private" else "no guarantee",
        f"{result['seconds'] / 60:.1f}",
    ]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    (target / "README.md").write_text(render(target), encoding="utf-8")
