"""An interrupt that a library turns into an error of its own still ends a command as an interrupt."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND = """
import os, signal
import numpy as np
from dpdist.cli.console import errors_reported
from dpdist.cli.main import _as_interrupt
from dpdist.core.this_process import remember_interrupts

class Compared:
    def __ne__(self, other):
        {inside}
        return True

    __hash__ = None

def act():
    pairs = np.array([Compared(), Compared(), Compared()], dtype=object)
    try:
        np.not_equal(pairs[1:], pairs[:-1])
    except KeyboardInterrupt:
        raise TypeError("the library's own words") from None

signal.signal(signal.SIGINT, {before})
signal.signal(signal.SIGTERM, _as_interrupt)
remember_interrupts()
with errors_reported():
    act()
"""


DEFAULT, IGNORED = "signal.default_int_handler", "signal.SIG_IGN"


@pytest.mark.parametrize(
    ("before", "inside", "code", "text"),
    [
        (DEFAULT, "os.kill(os.getpid(), signal.SIGINT)", 130, "Interrupted."),
        (DEFAULT, "os.kill(os.getpid(), signal.SIGTERM)", 130, "Interrupted."),
        (IGNORED, "os.kill(os.getpid(), signal.SIGTERM)", 130, "Interrupted."),
        (IGNORED, "os.kill(os.getpid(), signal.SIGINT)", 0, ""),  # as in the background of a shell
        (DEFAULT, "raise KeyboardInterrupt", 70, "internal error: TypeError"),  # control: no signal came
    ],
)
def test_an_error_after_ctrl_c_is_that_ctrl_c(before: str, inside: str, code: int, text: str) -> None:
    command = [sys.executable, "-c", COMMAND.format(before=before, inside=inside)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert text in ended.stderr
    assert ended.returncode == 0 if code == 0 else f"Failed: {code}" in ended.stderr
