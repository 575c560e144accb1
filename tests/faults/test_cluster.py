"""A release on a scheduler and workers that others started: its bytes, its links, and what happens when they break."""

from __future__ import annotations

import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from campaign import Run, Server, Survey, arguments, public_bytes, strata_done, wait_until
from canaries import spelled, survey
from cluster import Cluster, free_port

from dpdist.core.errors import ClusterError, TaskError
from dpdist.job import Runtime
from dpdist.runtime import tls
from dpdist.runtime.dask_executor import Dask
from dpdist.runtime.executors import executor
from dpdist.runtime.scheduler import Place
from dpdist.runtime.tls import Credentials, connect, make_certificates

pytestmark = pytest.mark.long


def runtime(cluster: Cluster, tls: Path | None = None, **more: object) -> Runtime:
    folder = str(tls or cluster.tls("driver"))
    return Runtime.model_validate({"executor": "dask", "scheduler": cluster.address, "tls": folder, **more})


def test_the_release_is_that_of_the_serial_run(
    few: Survey, undisturbed: Path, dpdist: Server, cluster: Cluster, tmp_path: Path
) -> None:
    replay = ("--replay", undisturbed / "confidential")
    ended = dpdist(*arguments(few.job(), tmp_path / "work", *replay, *cluster.driver))
    assert ended.code == 0, ended.text
    assert public_bytes(tmp_path / "work") == public_bytes(undisturbed)


def test_nothing_listens_beyond_loopback_and_no_secret_stands_in_arguments_or_environment(cluster: Cluster) -> None:
    connect(cluster.address, Credentials(cluster.tls("driver")).security(), 60)
    secrets = [line for role in ("scheduler", "worker", "driver") for line in _key_lines(cluster.tls(role) / "tls.key")]
    for process in cluster.processes.values():
        for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            told = " ".join([*one.cmdline(), *one.environ().values()])
            assert not any(secret in told for secret in secrets)
            heard = [c.laddr.ip for c in one.net_connections("inet") if c.status == psutil.CONN_LISTEN]
            assert set(heard) <= {"127.0.0.1"}
    assert secrets, "control: there was something to look for"


def _key_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if "PRIVATE KEY" not in line]


def test_what_a_task_raises_reaches_the_driver_and_no_log_of_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    import cloudpickle

    def quote(key: int) -> int:
        raise ValueError(f"cannot parse CANARY-{key}-in-a-record")

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have this file
    with executor(runtime(cluster), shared=tmp_path) as workers:
        with pytest.raises(ValueError, match="CANARY-3-in-a-record") as told:
            list(workers.map(quote, [3]))
        assert "on a worker: Traceback" in told.value.__notes__[0]
        assert "CANARY" not in cluster.logs()
        assert isinstance(workers, Dask)
        assert workers.client.submit(quote, 4).exception() is not None
        wait_until(lambda: "CANARY-4" in cluster.logs())  # control: Dask by itself quotes what tasks raise


def test_a_release_leaves_no_value_of_a_record_in_logs_figures_and_names_of_the_cluster(
    cluster: Cluster, dpdist: Server, tmp_path: Path
) -> None:
    work, log = tmp_path / "work", tmp_path / "log"
    ended = dpdist("run", survey(tmp_path), "-w", work, "--json", "--log", log, *cluster.driver)
    assert ended.code == 0, ended.text
    with urllib.request.urlopen(f"http://127.0.0.1:{cluster.http}/metrics", timeout=10) as page:
        figures = page.read().decode()
    assert 'task_prefix_name="ProtectBin"' in figures
    assert spelled(ended.text + log.read_text() + (work / "status.json").read_text() + figures + cluster.logs()) == []
    for path in ("/info/main/workers.html", "/json/index.html", "/status"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{cluster.http}{path}", timeout=10)


REFUSED = {
    "plain": r"did not answer for 1 s: no answer",
    "another authority": "its certificate is refused here",
    "only the other authority's certificate": "refuses the certificate of this side",
    "expired": r"tls.crt expired on .* UTC",
    "another's key": "is not that of the certificate",
    "no key": r"tls\.key cannot be read",
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_client_without_a_good_certificate_is_refused_and_told_why(
    what: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "ANSWER_TIMEOUT", 1.0)
    ours, others = tmp_path / "ours", tmp_path / "others"
    make_certificates(others)
    ours.mkdir()
    for name in ("ca.crt", "tls.crt", "tls.key"):
        source = others / "driver" if what == "another authority" else cluster.tls("driver")
        (ours / name).write_bytes((source / name).read_bytes())
    if what == "only the other authority's certificate":  # it trusts both, and shows the wrong one
        for name in ("tls.crt", "tls.key"):
            (ours / name).write_bytes((others / "driver" / name).read_bytes())
        (ours / "ca.crt").write_text(
            (cluster.tls("driver") / "ca.crt").read_text() + (others / "driver" / "ca.crt").read_text()
        )
    if what == "expired":
        (ours / "tls.crt").write_bytes((_expired(cluster, tmp_path) / "tls.crt").read_bytes())
    if what == "another's key":
        (ours / "tls.key").write_bytes((others / "driver" / "tls.key").read_bytes())
    if what == "no key":
        (ours / "tls.key").unlink()
    said = runtime(cluster, ours, start_timeout=1)
    if what == "plain":
        address = cluster.address.replace("tls", "tcp")
        said = Runtime(executor="dask", scheduler=address, start_timeout=1)
    with pytest.raises(ClusterError, match=REFUSED[what]):
        Place.of(said).connect()


def _expired(cluster: Cluster, folder: Path) -> Path:
    """A driver's certificate of the cluster's own authority that ended an hour ago."""
    from shutil import copytree

    copytree(cluster.folder / "certificates" / "authority", folder / "late" / "authority")
    make_certificates(folder / "late", days=-1 / 24)
    return folder / "late" / "driver"


def test_the_scheduler_itself_refuses_an_expired_certificate_and_dask_a_plain_client(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the checks on this side, as a client would that somebody else wrote."""
    from distributed import Client

    monkeypatch.setattr(Credentials, "check", lambda self: None)
    with pytest.raises(ClusterError, match=r"refuses the certificate of this side \(certificate expired\)"):
        Place.of(runtime(cluster, _expired(cluster, tmp_path))).connect()
    with pytest.raises(OSError):  # noqa: PT011 - dask's own words
        Client(cluster.address.replace("tls", "tcp"), timeout=1)


def test_a_driver_certificate_cannot_pose_as_a_scheduler(tmp_path: Path) -> None:
    made = Cluster(tmp_path)
    made.tls("scheduler").rename(tmp_path / "kept")
    made.tls("driver").rename(made.tls("scheduler"))
    (tmp_path / "kept").rename(made.tls("driver"))
    made.start_scheduler()
    try:
        with pytest.raises(ClusterError, match=r"its certificate is refused here \(unsuitable certificate purpose\)"):
            Place.of(runtime(made)).connect()
    finally:
        made.close()


def test_causes_of_a_scheduler_that_cannot_be_reached_are_named(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    security = Credentials(tmp_path / "driver").security()
    with pytest.raises(ClusterError, match=r"did not answer for 0 s: nobody listens there \(connection refused\)"):
        connect(f"tls://127.0.0.1:{free_port()}", security, 0)
    assert tls.address_here("tls://127.0.0.1:8786") == "127.0.0.1"
    with pytest.raises(ClusterError, match="its name cannot be resolved"):
        connect("tls://scheduler.invalid:8786", security, 0)


def test_a_plain_scheduler_on_this_machine_serves_and_unfit_workers_are_refused(tmp_path: Path) -> None:
    from distributed import LocalCluster

    quiet = {"dashboard_address": None, "silence_logs": 50, "processes": False, "worker_dashboard_address": None}
    with LocalCluster(n_workers=0, protocol="tcp://", host="127.0.0.1", **quiet) as made:
        place = {"executor": "dask", "scheduler": made.scheduler_address, "start_timeout": 0.5}
        with pytest.raises(ClusterError, match=r"has no workers after 0\.5 s"), executor(Runtime(**place)):
            pass
    with LocalCluster(n_workers=1, threads_per_worker=1, protocol="tcp://", host="127.0.0.1", **quiet) as made:
        place = {"executor": "dask", "scheduler": made.scheduler_address}
        with executor(Runtime(**place)) as workers:
            assert sorted(workers.map(abs, [-1, -2])) == [1, 2]
        with pytest.raises(ClusterError, match="offers no resource 'stan'"), executor(Runtime(**place), stan=True):
            pass
        with pytest.raises(ClusterError, match="does not find"), executor(Runtime(**place), shared=tmp_path / "elsewhere"):
            pass
    with LocalCluster(n_workers=1, threads_per_worker=2, protocol="tcp://", host="127.0.0.1", **quiet) as made:
        place = {"executor": "dask", "scheduler": made.scheduler_address}
        with pytest.raises(ClusterError, match="has 2 threads"), executor(Runtime(**place)):
            pass


def test_dasks_own_configuration_names_the_scheduler(cluster: Cluster) -> None:
    import dask

    said = runtime(cluster).model_copy(update={"scheduler": "config"})
    with pytest.raises(ClusterError, match="names no scheduler-address"):
        Place.of(said)
    with dask.config.set({"scheduler-address": cluster.address}), executor(said) as workers:
        assert isinstance(workers, Dask)
        assert list(workers.map(abs, [-3])) == [3]
    with dask.config.set({"scheduler-address": "tcp://10.0.0.1:8786"}), pytest.raises(ClusterError, match="not encrypted"):
        Place.of(said)


@pytest.mark.slow
def test_a_task_that_hangs_is_cut_with_its_worker_and_the_cluster_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    import cloudpickle

    def hang(key: int) -> int:
        while key == 1:
            time.sleep(0.1)
        return key

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with executor(runtime(cluster, stall_timeout=5), shared=tmp_path) as workers:
        assert isinstance(workers, Dask)
        workers.client.wait_for_workers(2, timeout=60)
        before = set(workers.client.run(os.getpid).values())
        with pytest.raises(TaskError, match=r"no task finished for 5 s \(function-\w+-1\)"):
            list(workers.map(hang, range(6)))
        wait_until(lambda: len(set(workers.client.run(os.getpid).values()) - before) == 1)
        assert sorted(workers.map(hang, [2, 3, 4])) == [2, 3, 4]


def test_sigterm_ends_a_driver_as_ctrl_c_does(cluster: Cluster, tmp_path: Path) -> None:
    many = Survey(tmp_path, (30,) * 120, draws=100)
    started = Run(many.job(), tmp_path / "work", *cluster.driver)
    assert started.until(lambda: (tmp_path / "work" / "confidential").exists())
    started.process.terminate()
    ended = started.end()
    assert (ended.code, ended.text) == (130, "Interrupted; the same command resumes.\n")


@pytest.mark.slow
def test_a_scheduler_lost_for_good_ends_a_run_with_a_message_and_the_same_command_resumes(
    cluster: Cluster, dpdist: Server, tmp_path: Path
) -> None:
    some = Survey(tmp_path, (30,) * 120, draws=100)
    assert dpdist(*arguments(some.job(), tmp_path / "peace")).code == 0
    more = ("--replay", tmp_path / "peace" / "confidential", *cluster.driver)

    started = Run(some.job("dask", start_timeout=1), tmp_path / "work", *more)
    assert started.until(lambda: strata_done(tmp_path / "work") >= 5)
    cluster.kill("scheduler")
    ended = started.end()
    assert (ended.code, ended.clear) == (1, True), ended.text
    assert "nobody listens there (connection refused)" in ended.text
    assert "the same command resumes" in ended.text
    assert not (tmp_path / "work" / "public").exists()
    assert strata_done(tmp_path / "work") < 120, "control: there is work left"

    cluster.start_scheduler()
    ended = dpdist(*arguments(some.job(), tmp_path / "work", *more))
    assert ended.code == 0, ended.text
    assert public_bytes(tmp_path / "work") == public_bytes(tmp_path / "peace")
