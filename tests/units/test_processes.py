"""Tests of the process pool."""

from __future__ import annotations

import os
import signal

import pytest

from attnaudit.errors import AuditError
from attnaudit.processes import spread


def kill_this_process(_task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_process_raises_an_error_that_names_the_remedy() -> None:
    with pytest.raises(AuditError, match=r"A process was killed.*fewer --jobs.*Finished results are kept"):
        list(spread(kill_this_process, [1, 2], 2))
