"""An interrupt that a library turns into an error of its own still ends a command as an interrupt."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND = """
import os, signal
import numpy as np
from dpdist.cli.console import guarded
from dpdist.runtime.interrupts import remember_interrupts

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

remember_interrupts()
guarded(act)
"""


@pytest.mark.parametrize(
    ("inside", "code", "text"),
    [
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "Interrupted; the same command resumes."),
        ("raise KeyboardInterrupt", 70, "internal error: TypeError"),  # control: no signal came
    ],
)
def test_an_error_after_ctrl_c_is_that_ctrl_c(inside: str, code: int, text: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", COMMAND.format(inside=inside)], capture_output=True, text=True, check=False
    )
    assert text in ended.stderr
    assert f"Exit: {code}" in ended.stderr or ended.returncode == code
