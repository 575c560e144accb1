"""For `cli.observing`: sends a run's trace to an OpenTelemetry collector, one span for each stage and task.

Spans are made from the events that operators may see (`observing.outward`). Their attributes are counts, and numbers of
strata and blocks. So a trace shows no more than the lines of JSON do. Traces need the extra `tracing`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpdist.core.errors import JobError, Problem, install
from dpdist.core.progress import Event, Listener

WAIT = 5.0
"""Seconds after which spans that the collector has not taken are given up."""
QUEUE = 2**14
"""Largest number of spans that wait to be sent. If more wait, the oldest are dropped, and counted as not taken."""


class Counted:
    """An exporter that counts the spans that arrived."""

    def __init__(self, exporter: Any) -> None:
        self._exporter, self.arrived = exporter, 0

    def export(self, spans: Any) -> Any:
        from opentelemetry.sdk.trace.export import SpanExportResult

        result = self._exporter.export(spans)
        self.arrived += len(spans) if result is SpanExportResult.SUCCESS else 0
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return bool(self._exporter.force_flush(timeout_millis))


class Trace:
    """The spans of one run, which go to an exporter in the background."""

    def __init__(self, exporter: Any, run: str) -> None:
        from opentelemetry.context import Context
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._exporter, self._ended = Counted(exporter), 0
        self._provider = TracerProvider(resource=Resource.create({"service.name": "dpdist"}), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=QUEUE))
        self._tracer = self._provider.get_tracer("dpdist")
        self._run = self._tracer.start_span("run", context=Context(), attributes={"dpdist.run": run})
        self._stages: dict[str, Any] = {}

    def hear(self, event: Event) -> None:
        if event.kind == "begin":
            self._end_stage(event.stage)
            self._stages[event.stage] = self._tracer.start_span(event.stage, context=_within(self._run))
        elif event.kind == "end" and event.stage in self._stages:
            if event.total is not None:
                self._stages[event.stage].set_attributes({"dpdist.done": event.done, "dpdist.total": event.total})
            self._end_stage(event.stage)
        elif event.kind == "task":
            self._task(event)
        elif event.kind == "retry":
            self._inner.add_event("tasks submitted again", {"dpdist.tasks": event.done})

    @property
    def _inner(self) -> Any:
        return next(reversed(self._stages.values()), self._run)

    def _task(self, event: Event) -> None:
        """A span that ends now, and began as many seconds ago as its worker says."""
        ended = time.time_ns()
        span = self._tracer.start_span(
            "task",
            context=_within(self._inner),
            attributes={f"dpdist.{name}": value for name, value in event.unit.items()},
            start_time=ended - int(1e9 * event.seconds),
        )
        self._end(span, ended)

    def _end_stage(self, name: str) -> None:
        if (span := self._stages.pop(name, None)) is not None:
            self._end(span)

    def _end(self, begun: Any, ended: int | None = None) -> None:
        self._ended += begun.is_recording()
        begun.end(ended)

    def end(self, state: str, why: str | None) -> None:
        """Ends the spans of the run and of its unfinished stages."""
        from opentelemetry.trace import Status, StatusCode

        for name in [*self._stages]:
            self._end_stage(name)
        self._run.set_status(Status(StatusCode.OK) if state != "failed" else Status(StatusCode.ERROR, why))
        self._end(self._run)

    def close(self) -> int:
        """Sends what is left. Returns the number of spans that did not arrive."""
        self._provider.shutdown()
        return self._ended - self._exporter.arrived


def _within(parent: Any) -> Any:
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(parent)


def collector(url: str) -> Any:
    """The exporter to a collector. Headers and certificates come from OpenTelemetry's own environment variables."""
    if not url.startswith(("http://", "https://")):
        allowed, remedy = "the URL of a collector (OTLP over HTTP)", "write http://127.0.0.1:4318/v1/traces"
        raise JobError("run", [Problem("--traces", "something else", allowed, remedy)])
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        problem = Problem("--traces", "OpenTelemetry is not installed", "with the extra", install("opentelemetry"))
        raise JobError("run", [problem]) from None
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # lost spans are only counted
    return OTLPSpanExporter(endpoint=url, timeout=WAIT)


@contextmanager
def traced(url: str, run: str, listener: Listener) -> Iterator[Trace]:
    """Gives the trace of a run. A collector that cannot be reached does not end the run; a note counts lost spans."""
    trace = Trace(collector(url), run)
    try:
        yield trace
    finally:
        if lost := trace.close():
            note = f"the collector of --traces did not take {lost:,} spans: look at its address and its log"
            listener(Event("note", "traces", note=note))
