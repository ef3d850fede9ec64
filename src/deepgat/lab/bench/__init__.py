"""Speed and memory of the operators against their peers: ratios measured in one run."""

from deepgat.lab.bench.measure import Measurement, machine, memory_comes_back
from deepgat.lab.bench.suites import SUITES, run_suites

__all__ = ["SUITES", "Measurement", "machine", "memory_comes_back", "run_suites"]
