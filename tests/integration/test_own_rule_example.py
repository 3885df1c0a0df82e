"""The template project's own tests pass, and its rule works in a command from its folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "src/privmarket/examples" / "own-rule"


def test_the_template_passes_its_own_tests():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_rule_works_in_a_command():
    small = ("--clients", "8", "--budget", "4", "--profiles", "1", "--json")
    command = [sys.executable, "-m", "privmarket", "audit", "--mechanism", "own_rule:SplitMarket", *small]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=800)
    assert json.loads(done.stdout)["broken"] == [], done.stderr
