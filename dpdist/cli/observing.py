"""Reports of a run to its operators: JSON log, metrics, status file and traces.

Metrics are for Prometheus, and the status file is for `dpdist status`. All are made from the events of the run. An event
has counts, names of stages and numbers of strata and blocks, but no data. Events do not show which strata took a fallback,
and no sizes if the number of records is secret (`progress.without_sizes`). The duration of a task depends slightly on the
data, so events are for the operators of the run only.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from uuid import uuid4

from dpdist.core.errors import ClusterError, DpdistError, JobError, TaskError, WorkspaceError
from dpdist.core.files import write_json
from dpdist.core.progress import Event, Listener, unit_label
from dpdist.storage.objects import Objects, is_url
from dpdist.storage.workspace import STATUS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
import logging

from dpdist.core.errors import install

# Spans are made from the events that operators may see (`observing.outward`). Their attributes are counts, and numbers of
# strata and blocks. So a trace shows no more than the lines of JSON do. Traces need the extra `tracing`.
WAIT = 5.0
"""Seconds after which spans that the collector has not taken are given up."""
QUEUE = 2**14
"""Largest number of spans that wait to be sent. If more wait, the oldest are dropped, and counted as not taken."""


class CountingExporter:
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

        self._exporter, self._ended = CountingExporter(exporter), 0
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
        raise JobError.of("run", "--traces", "something else", allowed, remedy)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise JobError.of(
            "run", "--traces", "OpenTelemetry is not installed", "with the extra", install("opentelemetry")
        ) from None
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
            note = f"the collector of --traces did not accept {lost:,} spans: check its address and its log"
            listener(Event("note", "traces", note=note))


STATUS_INTERVAL = 2.0
"""Seconds between writes of the status file within a stage."""
CHECKING = frozenset({"check records", "check reference", "fit to reference", "plan"})
"""Stages before the workspace belongs to the run. Until then it may belong to another run."""
FALLBACK = "protect again"
"""Name of the stage in which strata are fitted again with the proper prior, after their release failed."""
LINGER, ANSWERED = 30.0, 0.5
"""Seconds that a run waits to be asked for its last state, if it failed or its release is held, and seconds to answer.

Prometheus asks every 15 s or so. It would never see the state of a process that ends as it sets it.
"""
STATES = ("running", "finished", "held", "failed")
SILENT_AFTER = 120.0
"""Seconds without a write of the status after which a run may be dead, or in one long task."""


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class JsonLog:
    """Writes one JSON object per line: time, run, event, stage, counts, and for a finished task its stratum or blocks."""

    def __init__(self, stream: TextIO, run: str) -> None:
        self._stream, self._run = stream, run

    def hear(self, event: Event) -> None:
        if event.kind in ("alive", "part"):
            return
        line: dict[str, Any] = {"event": event.kind, "stage": event.stage}
        if event.kind in ("begin", "advance", "end"):
            line |= {"done": event.done, "total": event.total}
        if event.share is not None:
            line["share"] = round(event.share, 3)
        if event.kind in ("task", "work", "lost"):
            line |= event.unit
        if event.kind == "task":
            line["seconds"] = round(event.seconds, 3)
        if event.kind == "retry":
            line["tasks"] = event.done
        self.say(line)

    def say(self, event: Mapping[str, Any]) -> None:
        with suppress(OSError):  # a full disk ends the run elsewhere
            print(json.dumps({"time": now(), "run": self._run, **event}), file=self._stream, flush=True)


class Metrics:
    """Prometheus metrics of a run, in a separate registry."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram  # few runs have metrics

        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry}
        self._done = Gauge("dpdist_stage_done", "Completed units of a stage.", ["stage"], **options)
        self._total = Gauge("dpdist_stage_total", "All units of a stage.", ["stage"], **options)
        self._seconds = Gauge("dpdist_stage_seconds", "Seconds that a stage has taken so far.", ["stage"], **options)
        self._tasks = Histogram("dpdist_task_seconds", "Seconds of finished tasks.", buckets=_BUCKETS, **options)
        self._retries = Counter("dpdist_task_retries", "Tasks submitted again after a lost scheduler.", **options)
        self._losses = Counter("dpdist_worker_losses", "Workers that died in the middle of tasks.", **options)
        self._state = Gauge("dpdist_run_state", "1 for the state that the run is in.", ["state"], **options)
        self._began: dict[str, float] = {}
        self._asked = threading.Event()
        self.registry.register(self)
        self.set_state("running")

    def collect(self) -> tuple[()]:
        """Notes that the metrics were asked for, as a collector of the registry that has none of its own."""
        self._asked.set()
        return ()

    def linger(self) -> None:
        """Waits until the metrics are asked for, or for `LINGER` seconds."""
        self._asked.clear()
        if self._asked.wait(LINGER):
            time.sleep(ANSWERED)

    def hear(self, event: Event) -> None:
        if event.kind in ("begin", "advance", "end"):
            began = self._began.setdefault(event.stage, time.monotonic())
            self._done.labels(event.stage).set(event.done)
            if event.total is not None:
                self._total.labels(event.stage).set(event.total)
            self._seconds.labels(event.stage).set(time.monotonic() - began)
        elif event.kind == "task":
            self._tasks.observe(event.seconds)
        elif event.kind == "retry":
            self._retries.inc(event.done)
        elif event.kind == "lost":
            self._losses.inc()

    def set_state(self, state: str) -> None:
        for name in STATES:
            self._state.labels(name).set(name == state)


_BUCKETS = (0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


class Status:
    """The progress of a run as one small file, which is replaced at every stage and every few seconds."""

    def __init__(self, place: Callable[[], str | Path], run: str) -> None:
        self._place, self._file = place, Path()
        self._said: dict[str, Any] = {
            "run": run,
            "state": "running",
            "starts": 0,
            "began": now(),
            "stage": None,
            "stages": {},
            "tasks": 0,
            "retries": 0,
            "losses": 0,
        }
        self._began: dict[str, float] = {}
        self._written = 0.0
        self._owned = False
        self._objects: Objects | None = None

    def hear(self, event: Event) -> None:
        if event.kind in ("begin", "advance", "end"):
            began = self._began.setdefault(event.stage, time.monotonic())
            seconds = round(time.monotonic() - began, 3)
            self._said["stage"] = event.stage
            share = {} if event.share is None else {"share": round(event.share, 3)}
            self._said["stages"][event.stage] = {"done": event.done, "total": event.total, "seconds": seconds, **share}
            self._said["part"] = None
        elif event.kind == "part" and event.share is not None:
            self._said["part"] = round(event.share, 3)
        elif event.kind == "task":
            self._said["tasks"] += 1
        elif event.kind == "work":
            self._said["work"] = {**event.unit, "since": now()}
        elif event.kind == "lost":
            self._said["losses"] += 1
            self._said["lost"] = {**event.unit, "at": now()}
        elif event.kind == "retry":
            self._said["retries"] += event.done
        self._owned = self._owned or event.stage not in CHECKING
        if event.kind == "end":
            self._said["work"] = None
        if event.kind in ("begin", "end", "retry", "lost") or time.monotonic() - self._written > STATUS_INTERVAL:
            self._write()

    def end(self, state: str, why: str | None) -> dict[str, Any]:
        """Writes the last status of the run: how it ended, and why."""
        self._said |= {"state": state, "ended": now()} | ({"why": why} if why else {})
        self._write()
        return dict(self._said)

    def _write(self) -> None:
        """Writes the status, as soon as the workspace belongs to the run.

        Errors of the write are ignored, because a run must not fail for its status.
        """
        if self._owned:
            with suppress(OSError, WorkspaceError):
                if not self._said["starts"]:
                    self._objects, self._file = _opened_status(self._place())
                    self._said["starts"] = int((_read(self._objects or self._file) or {}).get("starts", 0)) + 1
                if self._objects is None:
                    write_json(self._file, {**self._said, "updated": now()}, mode=0o600)
                else:
                    self._objects.put(STATUS, json.dumps({**self._said, "updated": now()}, indent=2).encode())
                self._written = time.monotonic()


@contextmanager
def observed(
    root: str | Path | Callable[[], str | Path],
    log: str | None,
    metrics: str | None,
    listener: Listener,
    traces: str | None = None,
) -> Iterator[Listener]:
    """Makes a listener that passes events on, records and counts them, and notes how the block ended.

    `root` is the workspace, or a function that returns it as soon as the job's period is known.
    """
    run = uuid4().hex[:12]
    with ExitStack() as resources:
        status, figures, lines, trace = Status(root if callable(root) else lambda: root, run), None, None, None
        if log is not None:
            lines = JsonLog(resources.enter_context(_opened(log)), run)
        if metrics is not None:
            figures = Metrics()
            resources.enter_context(_served(metrics, figures.registry))
        if traces is not None:
            trace = resources.enter_context(traced(traces, run, listener))
        sinks = [status.hear, *(sink.hear for sink in (figures, lines, trace) if sink)]

        ended = "finished"

        def hear(event: Event) -> None:
            nonlocal ended
            ended = "held" if event.kind == "held" else ended
            listener(event)
            if (public_event := outward(event)) is not None:
                for sink in sinks:
                    sink(public_event)

        def tell(state: str, why: str | None) -> None:
            if figures:
                figures.set_state(state)
            summary = status.end(state, why)
            if lines:
                lines.say({"event": "summary", **{k: v for k, v in summary.items() if k != "run"}})
            if trace:
                trace.end(state, why)

        try:
            yield hear
        except BaseException as error:
            tell("failed", cause(error))
            if figures and isinstance(error, Exception):  # not where somebody has ended the run
                figures.linger()
            raise
        tell(ended, None)
        if figures and ended == "held":
            figures.linger()


def outward(event: Event) -> Event | None:
    """Removes confidential facts from an event: which strata took the proper prior, and how many."""
    if event.kind == "note" or event.unit.get("fit") == "proper":
        return None
    return event._replace(done=0, total=None, share=None) if event.stage == FALLBACK else event


def cause(error: BaseException) -> str:
    """States why a run ended, without text that may depend on data.

    Only errors of the machine are given with their message.
    """
    name = type(error).__name__
    if isinstance(error, ClusterError | TaskError | WorkspaceError) and error.__cause__ is None:
        return f"{name}: {str(error).splitlines()[0]}"
    if isinstance(error, OSError) and not isinstance(error, DpdistError):
        return f"{name}: {error.strerror}"
    return name


def read_status(workspace: str | Path) -> dict[str, Any]:
    """Reads the status of a run, and adds `silent`, the number of seconds since it was last written.

    Raises `WorkspaceError` if there is no status.
    """
    objects, file = _opened_status(workspace)
    status = _read(objects or file)
    if status is None:
        raise WorkspaceError(str(workspace), "no run has left a status here", "name the folder given to run --workspace", 2)
    updated = datetime.fromisoformat(status["updated"])
    return {**status, "silent": round((datetime.now(UTC) - updated).total_seconds(), 1)}


def status_lines(event: Mapping[str, Any]) -> dict[str, str]:
    """Formats a status as texts by heading."""
    state = str(event["state"])
    if state == "running" and event["silent"] > SILENT_AFTER:
        state = f"running, or dead: no sign of life for {event['silent']:,.0f} s"
    texts = {"state": state, "began": str(event["began"]), "starts": str(event["starts"])}
    if "why" in event:
        texts["why"] = str(event["why"])
    for name, stage in event["stages"].items():
        total = "" if stage["total"] is None else f" of {stage['total']:,}"
        share = f" ({100 * stage['share']:.0f} % of the work)" if "share" in stage else ""
        texts[name] = f"{stage['done']:,}{total}{share} in {stage['seconds']:,.1f} s"
    if event["state"] == "running" and (work := event.get("work")):
        part = f", {event['part']:.0%} done" if event.get("part") else ""
        texts["at work"] = f"{_unit(work)}, since {work['since']}{part}"
    texts["tasks"] = f"{event['tasks']:,}, {event['retries']:,} submitted again"
    if lost := event.get("lost"):
        texts["workers that died"] = f"{event['losses']:,}, the last in {_unit(lost)} at {lost['at']}"
    return texts


def _unit(facts: Mapping[str, Any]) -> str:
    return unit_label({name: value for name, value in facts.items() if name not in ("since", "at")})


def _opened_status(workspace: str | Path) -> tuple[Objects | None, Path]:
    """The object store of a workspace's status, or None, and the path of its file on this machine."""
    return Objects(str(workspace), soon=True, reading=True) if is_url(workspace) else None, Path(workspace) / STATUS


def _read(place: Path | Objects) -> dict[str, Any] | None:
    try:
        stored = place.get(STATUS) if isinstance(place, Objects) else None
        text = stored.data if stored else place.read_bytes() if isinstance(place, Path) else b""
        status: dict[str, Any] = json.loads(text)
    except (OSError, ValueError):
        return None
    return status


@contextmanager
def _opened(log: str) -> Iterator[TextIO]:
    if log == "-":
        yield sys.stderr
        return
    with Path(log).open("a", encoding="utf-8") as stream:
        yield stream


@contextmanager
def _served(place: str, registry: CollectorRegistry) -> Iterator[None]:
    from prometheus_client import start_http_server

    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        raise JobError.of("run", "--metrics", f"'{place}'", "host:port", "write 127.0.0.1:9100")
    try:
        server, thread = start_http_server(int(port), addr=host.strip("[]"), registry=registry)
    except OSError as error:
        raise ClusterError(f"metrics cannot be served on {place} ({error.strerror})", "choose another host:port") from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
