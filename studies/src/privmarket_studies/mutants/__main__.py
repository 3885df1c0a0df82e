"""`python -m privmarket_studies.mutants`: try faults, or render the page of what was tried."""

from __future__ import annotations

import argparse
import subprocess
from importlib import import_module
from pathlib import Path

from privmarket_studies.mutants import campaign


def main() -> None:
    """Runs a step of the campaign as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "list", "page"))
    parser.add_argument("--root", type=Path, default=Path(), help="the repository")
    parser.add_argument(
        "--out", type=Path, default=Path("out/mutants.jsonl"), help="results so far; goes on from it"
    )
    parser.add_argument("--minutes", type=float, help="start no further fault after so many minutes")
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    parser.add_argument("--only", action="append", default=[], metavar="PATH", help="only this target; repeatable")
    parser.add_argument("--test", action="append", default=[], metavar="FILE[::TEST]", help="only this; repeatable")
    parser.add_argument("--tests", default="", metavar="COMMIT", help="of the newest tests, if newer than the code")
    parser.add_argument("--page", type=Path, default=Path("docs/results/mutants"), help="folder of the page")
    options = parser.parse_args()
    root = options.root.resolve()
    if options.what == "list":
        for attempt in campaign.sample(root):
            print(attempt.fault.name)
        return
    if options.what == "run":
        options.out.parent.mkdir(parents=True, exist_ok=True)
        campaign.run(
            root,
            options.out.resolve(),
            minutes=options.minutes,
            again=options.again,
            only=options.only,
            tests=options.test,
        )
    else:
        git = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        page = import_module("privmarket_studies.mutants.page")  # it writes by privmarket, which no run may import
        page.write(options.page, campaign.of_sample(root, options.out), commit, options.tests)


if __name__ == "__main__":
    main()
