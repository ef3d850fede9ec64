"""More processes than a machine can hold are refused before one is started."""

import pytest

from deepgat.distributed import launch
from deepgat.errors import UserError


@pytest.mark.parametrize("count", [0, -1, 10**5, 10**23])
def test_absurd_numbers_of_processes_are_refused(count):
    with pytest.raises(UserError, match=f"processes is {count}: expected"):
        launch.launch(count, [])


def test_processes_that_memory_cannot_hold_are_refused(monkeypatch):
    monkeypatch.setattr(launch, "free_memory", lambda _: 2.0**28)
    launch.check_processes(1)
    with pytest.raises(UserError, match="workers is 2: each takes 200 MiB at least, but 256 MiB"):
        launch.check_processes(2, "workers")
