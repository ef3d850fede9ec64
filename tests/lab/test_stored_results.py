"""The records in results/: each is whole, and signed as the code of today signs it."""

from pathlib import Path

import pytest

from deepgat.lab.experiments import RunSpec, read_records
from deepgat.lab.experiments.transfer import diverged_beside, read_diverged

RESULTS = Path(__file__).parents[2] / "results"
FILES = [path for path in sorted(RESULTS.glob("*.jsonl.gz")) if ".frozen." not in path.name]
LARGE = 200_000
"""Bytes of a file whose records take seconds to check."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.name,
            marks=[pytest.mark.slow] if path.stat().st_size > LARGE else [],
        )
        for path in FILES
    ],
)
def test_every_record_is_whole_and_has_the_signature_of_its_spec(path):
    records = read_records(path)  # checks each checksum, schema and signature
    assert records
    signatures = [record["signature"] for record in records]
    assert signatures == sorted(set(signatures))
    for record in records:
        assert RunSpec.from_dict(record).signature == record["signature"]


@pytest.mark.slow
def test_every_run_that_diverged_has_the_signature_of_its_spec():
    lost = [path for path in FILES if diverged_beside(path).exists()]
    assert lost
    for path in lost:
        done = {record["signature"] for record in read_records(path)}
        found = read_diverged(path)  # checks each signature
        assert found
        assert done.isdisjoint(found)
        for signature, failure in found.items():
            assert RunSpec.from_dict(failure).signature == signature
