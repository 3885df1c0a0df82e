"""Commands of the study of money and accuracy under both trusts; each goes on where it was stopped.

python -m privmarket_studies.trust_study select --minutes 12    server's rates and H, on validation records
python -m privmarket_studies.trust_study runs --minutes 12      the kept runs
python -m privmarket_studies.trust_study again --only NAME --seeds 0    a kept run once more, beside what was kept
python -m privmarket_studies.trust_study speed                  a simulated round under each trust
python -m privmarket_studies.trust_study render                 page and figure
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from privmarket._files import write_atomically
from privmarket.simulation._federation import Federation
from privmarket.tasks import load_dataset, with_features
from privmarket_studies.trust_front import caption, draw_front, headline
from privmarket_studies.trust_results import draw, render
from privmarket_studies.trust_runs import BARS, MORE_SEEDS, curves, make, point, shared_out
from privmarket_studies.trust_selection import Selection, select

FOLDER = Path(__file__).parents[3] / "docs" / "results" / "trust"


def measure_speed(path: Path, rounds: int = 4) -> None:
    """Processor seconds of a round on MNIST under each trust, the fastest of several; written to `path`."""
    features = with_features(load_dataset("mnist"), "whitened-scattering")
    seconds: dict[str, float] = {}
    for trust in ("local", "aggregate"):
        config = point(trust, "ration", 100, 16.0, 1.0).config(0)
        plain = config.replace_training(features="none")
        with Federation(plain, task=shared_out(config, features)) as federation:
            state, taken = federation.start(), []
            for _ in range(rounds):
                started = time.process_time()
                state = federation.step(state)
                taken.append(time.process_time() - started)
        seconds[trust] = min(taken)
    write_atomically(path, json.dumps(seconds, indent=1) + "\n")


def run_again(folder: Path, only: str, seeds: tuple[int, ...]) -> None:
    """Makes kept runs once more, with today's code, and notes their accuracies in `again.json`."""
    path = folder / "again.json"
    with TemporaryDirectory() as fresh:
        make(Path(fresh), BARS, 600.0, only, seeds)
        noted = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for file in sorted(Path(fresh).iterdir()):
            noted[file.stem] = json.loads(file.read_text(encoding="utf-8"))["accuracy"]
    write_atomically(path, json.dumps(noted, indent=1) + "\n")


def main() -> None:
    """Does what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("select", "runs", "again", "speed", "render"))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--only", default="", help="Runs whose names begin with this.")
    parser.add_argument("--seeds", type=int, nargs="*", default=MORE_SEEDS)
    given = parser.parse_args()
    if given.what == "select":
        left = select(given.folder, given.minutes)
        print(f"{left} trials are missing" if left else "complete")
    elif given.what == "runs":
        kept = (*BARS, *curves(Selection(given.folder)))
        left = make(given.folder / "runs", kept, given.minutes, given.only, tuple(given.seeds))
        print(f"{left} runs are missing" if left else "complete")
    elif given.what == "again":
        run_again(given.folder, given.only, tuple(given.seeds))
    elif given.what == "speed":
        measure_speed(given.folder / "speed.json")
    else:
        draw(given.folder)
        draw_front(given.folder)
        write_atomically(given.folder / "README.md", render(given.folder))
        print(caption(given.folder), headline(given.folder), sep="\n")


if __name__ == "__main__":
    main()
