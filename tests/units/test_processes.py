"""Work that is shared out, and a process that dies of it."""

from __future__ import annotations

import os
import signal

import pytest

from attnaudit.errors import AuditError
from attnaudit.processes import spread


def killed(_task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.mark.skipif(os.name == "nt", reason="there are no such signals")
def test_a_process_that_is_killed_is_told_with_the_mend() -> None:
    with pytest.raises(AuditError, match=r"A process was killed.*fewer --jobs.*what is finished is kept"):
        list(spread(killed, [1, 2], 2))
