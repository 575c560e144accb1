"""The trace of a run: what its spans say, what they never say, and what becomes of a run without a collector."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pandas as pd
import pytest
from canaries import spelled, survey
from command_line import invoke, succeed
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dpdist.cli import observing
from dpdist.cli.observing import observed
from dpdist.core.errors import ClusterError
from dpdist.core.progress import Event, Listener, silent, stage, without_sizes

NAMES = {
    f"dpdist.{name}" for name in ("run", "done", "total", "task", "fit", "stratum", "strata", "block", "blocks", "key")
}
"""Every attribute that a span may have."""
TEXTS = {"strata", "pooled", "ProtectBin", "ProtectOne", "VisitPart"}
"""Every text that an attribute of a task may hold: fits and kinds of tasks."""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Keeps spans in this process, in place of a collector."""
    kept = InMemorySpanExporter()
    monkeypatch.setattr(observing, "collector", lambda url: kept)
    return kept


@contextmanager
def a_collector(status: int = 200) -> Iterator[tuple[str, list[bytes]]]:
    """A server on this machine that takes spans, or answers with another status; its URL, and what it was sent."""
    taken: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *said: object) -> None:
            return None

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def some_work(listener: Listener) -> None:
    with stage(listener, "protect", 10) as tick:
        listener(Event("task", "", unit={"task": "ProtectBin", "fit": "strata", "stratum": 3, "strata": 4}, seconds=2.0))
        tick(10)
        listener(Event("retry", "", done=2))


def test_a_span_of_the_run_holds_those_of_stages_and_they_those_of_tasks(
    memory: InMemorySpanExporter, tmp_path: Path
) -> None:
    with observed(tmp_path, None, None, silent, "memory") as listener:
        some_work(listener)
    task, protect, run = memory.get_finished_spans()
    assert [task.name, protect.name, run.name] == ["task", "protect", "run"]
    assert (task.parent.span_id, protect.parent.span_id) == (protect.context.span_id, run.context.span_id)
    assert run.parent is None
    assert (task.end_time - task.start_time) / 1e9 == pytest.approx(2.0, abs=1e-6)
    assert dict(task.attributes) == {f"dpdist.{k}": v for k, v in {
        "task": "ProtectBin", "fit": "strata", "stratum": 3, "strata": 4}.items()}  # fmt: skip
    assert dict(protect.attributes) == {"dpdist.done": 10, "dpdist.total": 10}
    assert [(event.name, dict(event.attributes)) for event in protect.events] == [
        ("tasks submitted again", {"dpdist.tasks": 2})
    ]
    assert run.status.is_ok
    assert {span.resource.attributes["service.name"] for span in (task, protect, run)} == {"dpdist"}


def test_no_attribute_of_a_whole_run_holds_a_value_of_a_record(memory: InMemorySpanExporter, tmp_path: Path) -> None:
    job, work = survey(tmp_path, fallback="proper_prior"), tmp_path / "work"
    succeed("run", job, "-w", work, "-q", "--traces", "memory")
    spans = memory.get_finished_spans()
    assert {"run", "check records", "protect", "task", "synthetic records", "evaluate"} <= {span.name for span in spans}
    said = [(name, value) for span in spans for name, value in span.attributes.items()]
    assert {name for name, _ in said} <= NAMES
    assert {value for name, value in said if isinstance(value, str) and name != "dpdist.run"} <= TEXTS
    told = "\n".join(span.to_json() for span in spans)
    assert spelled(told) == []
    rows = pd.read_feather(work / "confidential" / "records" / "records.arrow")
    assert len(set(spelled(rows.to_csv()))) >= 2, "control: inside, these spellings occur"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("731234.56789"), "ValueError"),
        (ClusterError("nobody listens there", "look"), "ClusterError: cluster: nobody listens there"),
    ],
)
def test_a_run_that_fails_says_the_kind_of_its_error_and_ends_its_stages(
    memory: InMemorySpanExporter, tmp_path: Path, error: Exception, told: str
) -> None:
    def fail() -> None:
        with observed(tmp_path, None, None, silent, "memory") as listener:
            listener(Event("begin", "protect", 0, 3))
            raise error

    with pytest.raises(type(error)):
        fail()
    protect, run = memory.get_finished_spans()
    assert (run.status.is_ok, run.status.description) == (False, told)
    assert (protect.name, protect.end_time is not None) == ("protect", True)
    assert spelled(run.to_json() + protect.to_json()) == []


def test_where_sizes_are_secret_no_span_counts_and_no_task_has_one(memory: InMemorySpanExporter, tmp_path: Path) -> None:
    with observed(tmp_path, None, None, silent, "memory") as listener:
        guarded = without_sizes(listener)
        some_work(guarded)
        with stage(guarded, "check records", 731_234) as tick:
            tick(731_234)
    spans = {span.name: dict(span.attributes) for span in memory.get_finished_spans()}
    assert spans.keys() == {"protect", "check records", "run"}
    assert spans["check records"] == {}
    assert spans["protect"] == {"dpdist.done": 10, "dpdist.total": 10}, "control: the number of strata is public"


def test_strata_that_took_a_fallback_have_no_span(memory: InMemorySpanExporter, tmp_path: Path) -> None:
    with observed(tmp_path, None, None, silent, "memory") as listener, stage(listener, "protect again", 2) as tick:
        listener(Event("task", "", unit={"fit": "proper", "stratum": 1}, seconds=1.0))
        tick(2)
    again, _ = memory.get_finished_spans()
    assert (again.name, dict(again.attributes)) == ("protect again", {})


def test_spans_arrive_at_a_collector(tmp_path: Path) -> None:
    with a_collector() as (url, taken), observed(tmp_path, None, None, silent, url) as listener:
        some_work(listener)
    requests = [ExportTraceServiceRequest.FromString(body) for body in taken]
    spans = [span for one in requests for of in one.resource_spans for scope in of.scope_spans for span in scope.spans]
    assert sorted(span.name for span in spans) == ["protect", "run", "task"]
    assert len({span.trace_id for span in spans}) == 1


def test_a_collector_that_takes_nothing_costs_a_run_a_note_and_nothing_else(tmp_path: Path) -> None:
    heard: list[Event] = []
    with a_collector(status=400) as (url, taken), observed(tmp_path, None, None, heard.append, url) as listener:
        some_work(listener)
    assert taken, "control: it was asked"
    assert [event.note for event in heard if event.kind == "note"] == [
        "the collector of --traces did not accept 3 spans: check its address and its log"
    ]


class Slow(InMemorySpanExporter):
    """Takes nothing before the work is done, as a collector that is slower than the run."""

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        assert self.done.wait(60)
        return super().export(spans)


@pytest.mark.parametrize("queue", [512, None])
def test_spans_that_a_full_queue_drops_are_in_the_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: int | None
) -> None:
    """6,002 spans. Control: the queue of a run holds them all, and there is no note."""
    slow, heard, tasks = Slow(), list[Event](), 6000
    monkeypatch.setattr(observing, "collector", lambda url: slow)
    if queue is not None:
        monkeypatch.setattr(observing, "QUEUE", queue)
    with observed(tmp_path, None, None, heard.append, "memory") as listener:
        with stage(listener, "protect", tasks) as tick:
            for number in range(tasks):
                listener(Event("task", "", unit={"stratum": number}, seconds=0.1))
            tick(tasks)
        slow.done.set()
    lost = tasks + 2 - len(slow.get_finished_spans())
    assert lost == 0 if queue is None else lost > 4000
    told = f"the collector of --traces did not accept {lost:,} spans: check its address and its log"
    assert [event.note for event in heard if event.kind == "note"] == [told] * (lost > 0)


def test_spans_of_an_exporter_that_raises_are_in_the_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Raising(InMemorySpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            raise OSError("no route")

    heard: list[Event] = []
    monkeypatch.setattr(observing, "collector", lambda url: Raising())
    with observed(tmp_path, None, None, heard.append, "memory") as listener:
        some_work(listener)
    assert any("did not accept 3 spans" in event.note for event in heard if event.kind == "note")


def test_spans_that_settings_of_opentelemetry_leave_out_are_not_missed(
    memory: InMemorySpanExporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    heard: list[Event] = []
    with observed(tmp_path, None, None, heard.append, "memory") as listener:
        some_work(listener)
    assert (len(memory.get_finished_spans()), [event for event in heard if event.kind == "note"]) == (0, [])


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://collector:4317", ""])
def test_what_is_no_url_is_refused_before_the_run(tmp_path: Path, url: str) -> None:
    ended = invoke("run", survey(tmp_path), "-w", tmp_path / "work", "--traces", url)
    assert ended.exit_code == 2
    assert "write http://127.0.0.1:4318/v1/traces" in " ".join(ended.output.split())
    assert not (tmp_path / "work").exists()


def test_without_the_extra_the_run_is_refused_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    line = ["run", str(survey(tmp_path)), "-w", str(tmp_path / "work"), "--traces", "http://127.0.0.1:4318/v1/traces"]
    ended = invoke(*line)
    assert ended.exit_code == 2
    assert "dpdist[tracing]" in ended.output


def test_a_run_that_is_not_traced_loads_none_of_it(tmp_path: Path) -> None:
    def loaded(*more: str) -> str:
        text = (
            "import sys\nfrom dpdist.cli.observing import observed\nfrom dpdist.core.progress import silent\n"
            f"with observed({str(tmp_path)!r}, None, None, silent{''.join(more)}): pass\n"
            "print('opentelemetry' in sys.modules)"
        )
        return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120).stdout

    assert loaded().strip() == "False"
    with a_collector() as (url, _):
        assert loaded(f", {url!r}").strip() == "True", "control"
