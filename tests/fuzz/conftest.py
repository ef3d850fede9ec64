"""Counts of ``make fuzz``; tests here import the helper modules of the laboratory's tests too."""

import sys
from pathlib import Path

import pytest

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "lab"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for kind in ("passed", "failed") for r in terminalreporter.getreports(kind)]
    found = sorted(
        value for r in reports for name, value in r.user_properties if name == "examples"
    )
    if not found:
        return
    found.append(["all", sum(row[1] for row in found), sum(row[2] for row in found)])
    terminalreporter.section("files tried")
    terminalreporter.write_line(f"{'reader':<14}{'examples':>10}{'read':>10}{'refused':>10}")
    for name, tried, read in found:
        terminalreporter.write_line(f"{name:<14}{tried:>10,}{read:>10,}{tried - read:>10,}")
