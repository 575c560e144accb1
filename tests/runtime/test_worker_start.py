"""A worker whose process does not start: it tries again, and says at last that it did not."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from dpdist.core.errors import ClusterError
from dpdist.runtime import deaths, services


class Failing:
    """Stands for Dask's `Nanny`: the first `failures` of them do not start, the next one ends at once, as told."""

    def __init__(self, failures: int) -> None:
        self.failures, self.made = failures, 0

    def __call__(self, *said: object, **more: object) -> Failing:
        self.made += 1
        return self

    def __await__(self) -> Generator[Any, None, Failing]:
        if self.made <= self.failures:
            raise RuntimeError("Nanny failed to start.") from TimeoutError()
        return self
        yield

    async def finished(self) -> None: ...

    async def close(self, reason: str) -> None: ...


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    async def told(finished: Any) -> bool:
        await finished
        return True

    monkeypatch.setattr(services.Credentials, "security", lambda self: None)
    monkeypatch.setattr(services, "connect", lambda *said: None)
    monkeypatch.setattr(services, "_until_told", told)
    return monkeypatch


def serve(failing: Failing, here: pytest.MonkeyPatch) -> None:
    here.setattr(deaths, "WatchingNanny", failing)
    services.serve_worker("tls://scheduler:8786", Path("tls"), host="127.0.0.1", http="127.0.0.1:0", patience=1.0)


def test_a_worker_whose_process_died_while_it_started_is_started_again(here: pytest.MonkeyPatch) -> None:
    serve(failing := Failing(services.STARTS - 1), here)
    assert failing.made == services.STARTS


def test_a_worker_that_never_starts_says_so(here: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=r"did not start, 3 times \(TimeoutError\)") as told:
        serve(failing := Failing(9), here)
    assert (failing.made, told.value.exit_code) == (services.STARTS, 1)
    assert "memory limit" in told.value.remedy
