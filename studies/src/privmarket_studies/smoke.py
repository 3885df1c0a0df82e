"""Is the package ready to publish? Builds it, installs it outside the checkout, and uses it in an empty folder.

    python -m privmarket_studies.smoke . --python python3.11 --python python3.13

A fresh environment gets the wheel and nothing of the checkout. Then: what the core weighs, how fast it starts,
whether the core's commands work, whether a missing extra is one line, and whether the source archive installs too.
With `--extra broker` (repeatable) the commands of an extra are tried as well; with `--pages quick` or `slow`,
after the extras, every command of the documentation and of the help texts (see `privmarket_fixtures.pasted`).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from privmarket_fixtures import pasted

CORE_LIMIT_MB = 260
IMPORT_LIMIT_SECONDS = 0.2
HELP_LIMIT_SECONDS = 0.5
_CORE_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("sample", "bids.csv"),
    ("example", "flower-quickstart"),
    ("auction", "bids.csv", "--mechanism", "proportional-share", "--budget", "1"),
    ("auction", "bids.csv", "--mechanism", "mfg-menunet", "--budget", "1", "--json"),
    ("audit", "--mechanism", "mean-field-menu", "--clients", "10", "--budget", "5", "--profiles", "1"),
    ("account", "--sale", "1.0x20"),
    ("equilibrium", "--grid", "16x16x16", "--json"),
)
_MISSING: dict[str, tuple[str, ...]] = {
    "learn": ("auction", "bids.csv", "--mechanism", "regretnet", "--budget", "1"),
    "federated": ("demo",),
    "broker": ("serve",),
    "flower": ("flower", "run", "."),
    "plots": ("account", "--sale", "1", "--plot", "figure.png"),
}
_EXTRA_COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "learn": (("auction", "bids.csv", "--mechanism", "regretnet", "--budget", "1"),),
    "federated": (("demo", "--out", "."),),
    "plots": (("account", "--sale", "1", "--plot", "figure.png"),),
    "broker": (("broker", "verify", "--help"),),
}


@dataclass
class Findings:
    """What was seen with one interpreter.

    Attributes:
        core_mb: what the core adds to a fresh environment on the disk (as `du` counts), byte code included.
        import_seconds, help_seconds: processor time of a fresh process, the least of five.
        install_seconds: of the core, as long as the package index takes.
        problems: what does not hold; empty if ready.
    """

    python: str
    core_mb: float = 0.0
    import_seconds: float = 0.0
    help_seconds: float = 0.0
    install_seconds: float = 0.0
    extras: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


class Environment:
    """A virtual environment and an empty folder to work in, both outside the checkout."""

    def __init__(self, place: Path, python: str) -> None:
        self.place, self.work = place / "venv", place / "work"
        self.work.mkdir(parents=True)
        subprocess.run([python, "-m", "venv", str(self.place)], check=True)
        self.scripts = self.place / ("Scripts" if os.name == "nt" else "bin")

    def install(self, *what: str, constraint: Path | None = None) -> float:
        """Installs; the seconds that took."""
        limits = ["--constraint", str(constraint)] if constraint else []
        started = time.perf_counter()
        command = [str(self.scripts / "python"), "-m", "pip", "install", "--quiet", *limits, *what]
        subprocess.run(command, check=True, stdout=sys.stderr, env=self._without_checkout())
        return time.perf_counter() - started

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment in the empty folder, without the checkout on its path."""
        command = [str(self.scripts / arguments[0]), *arguments[1:]]
        return subprocess.run(
            command,
            cwd=self.work,
            env=self._without_checkout(),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def _without_checkout(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def fastest(self, *arguments: str, times: int = 5) -> float:
        """Processor seconds of the fastest of several runs."""
        found = []
        for _ in range(times):
            before = os.times()
            self.run(*arguments)
            after = os.times()
            found.append(sum(after[2:4]) - sum(before[2:4]))  # user and system time of ended children
        return min(found)

    def megabytes(self) -> float:
        """What site-packages takes on the disk in MB of 2^20 bytes, without what every environment has.

        As `du` counts, in whole blocks: the sizes of the files add up to about a twentieth less.
        """
        (packages,) = {path.parent for path in self.place.rglob("pip") if path.parent.name == "site-packages"}
        added = [path for path in packages.rglob("*") if not _of_every_environment(path.relative_to(packages))]
        return sum(512 * path.lstat().st_blocks for path in added) / 2**20


def _of_every_environment(path: Path) -> bool:
    return path.parts[0].startswith(
        ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
    )


def build(checkout: Path, target: Path) -> tuple[Path, Path]:
    """The wheel and the source archive, built in isolation."""
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(target), str(checkout)], check=True, stdout=sys.stderr
    )
    (wheel,), (archive,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, archive


def problems_inside(wheel: Path, archive: Path) -> list[str]:
    """Files that should not be in the archives, or are missing from them."""
    said = []
    names = zipfile.ZipFile(wheel).namelist()
    stray = sorted({name.split("/")[0] for name in names} - {"privmarket"})
    said += [f"the wheel holds {name}" for name in stray if not name.endswith(".dist-info")]
    wanted = ("privmarket/py.typed", "privmarket/reports/templates/federated_report.html")
    said += [f"the wheel lacks {name}" for name in wanted if name not in names]
    if not any(name.endswith(".safetensors") for name in names):
        said.append("the wheel lacks the weights of the networks")
    with tarfile.open(archive) as source:
        held = {name.partition("/")[2] for name in source.getnames()}
    said += [
        f"the source archive lacks {name}"
        for name in ("LICENSE", "README.md", "pyproject.toml")
        if name not in held
    ]
    return said


def examine(
    wheel: Path,
    archive: Path,
    python: str,
    extras: Sequence[str],
    constraint: Path | None,
    pages: tuple[Path, bool] | None = None,
) -> Findings:
    """Installs the wheel for one interpreter and uses it.

    Args:
        pages: the checkout whose pages' commands are run after the extras, and whether to run slow ones too.
    """
    found = Findings(
        subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    )
    place = Path(tempfile.mkdtemp(prefix="privmarket-smoke-"))
    try:
        environment = Environment(place, python)
        found.install_seconds = environment.install(str(wheel), constraint=constraint)
        for arguments in _CORE_COMMANDS:
            _must_work(found, environment, arguments)
        found.core_mb = environment.megabytes()
        found.import_seconds = environment.fastest("python", "-c", "import privmarket")
        found.import_seconds -= environment.fastest("python", "-c", "pass")
        found.help_seconds = environment.fastest("privmarket", "--help")
        for extra, arguments in _MISSING.items():
            _must_name(found, environment, extra, arguments)
        environment.install("--force-reinstall", "--no-deps", str(archive))
        _must_work(found, environment, _CORE_COMMANDS[-1])
        for extra in extras:
            environment.install(f"privmarket[{extra}] @ {wheel.as_uri()}", constraint=constraint)
            found.extras[extra] = environment.megabytes()
            for arguments in _EXTRA_COMMANDS.get(extra, ()):
                _must_work(found, environment, arguments)
        if pages is not None:
            places = pasted.by_place(pasted.commands(pages[0]))
            program = pasted.with_program(str(environment.scripts / "privmarket"))
            found.problems += pasted.failures(places, program, slow=pages[1])
    finally:
        shutil.rmtree(place, ignore_errors=True)
    limits = (
        ("core_mb", CORE_LIMIT_MB),
        ("import_seconds", IMPORT_LIMIT_SECONDS),
        ("help_seconds", HELP_LIMIT_SECONDS),
    )
    for name, limit in limits:
        if getattr(found, name) > limit:
            found.problems.append(f"{name} is {getattr(found, name):.2f}, more than {limit}")
    return found


def _must_work(found: Findings, environment: Environment, arguments: Sequence[str]) -> None:
    result = environment.run("privmarket", *arguments)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or [""])[-1]
        found.problems.append(f"privmarket {' '.join(arguments)}: exit {result.returncode}: {last}")


def _must_name(found: Findings, environment: Environment, extra: str, arguments: Sequence[str]) -> None:
    result = environment.run("privmarket", *arguments)
    lines = result.stderr.strip().splitlines()
    if result.returncode != 2 or len(lines) != 1 or f"privmarket[{extra}]" not in lines[0]:
        found.problems.append(
            f"privmarket {' '.join(arguments)} does not name the extra {extra} in one line: {lines[-1:]}"
        )


def main() -> None:
    """Checks the built packages; exits with code 1 if anything does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="the repository")
    parser.add_argument("--python", action="append", help="an interpreter to try; repeatable")
    parser.add_argument(
        "--extra", action="append", default=[], help="an extra to install after the core; repeatable"
    )
    parser.add_argument("--dist", type=Path, help="keep the built files in this folder")
    parser.add_argument("--pages", choices=["quick", "slow"], help="also run the documentation's commands")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    pages = None if options.pages is None else (checkout, options.pages == "slow")
    constraint = checkout / "constraints.txt"
    with tempfile.TemporaryDirectory() as folder:
        wheel, archive = build(checkout, options.dist or Path(folder))
        problems = problems_inside(wheel.resolve(), archive)
        findings = [
            examine(wheel.resolve(), archive.resolve(), python, options.extra, constraint, pages)
            for python in options.python or [sys.executable]
        ]
    print(json.dumps({"archives": problems, "interpreters": [asdict(found) for found in findings]}, indent=1))
    sys.exit(bool(problems or any(found.problems for found in findings)))


if __name__ == "__main__":
    main()
