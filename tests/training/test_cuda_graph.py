"""Recording is for GPUs; everywhere else a recorded function is the function (see test_gpu.py)."""

from deepgat.training.cuda_graph import Recorded


def test_without_recording_every_call_runs_the_function():
    calls: list[int] = []
    recorded = Recorded(lambda: calls.append(1) or len(calls), enabled=False)
    assert [recorded() for _ in range(5)] == [1, 2, 3, 4, 5]
    recorded.release()
    assert recorded() == 6
