"""A release in the hands of others: every changed, missing and added file is named, and who signed it is known."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import minisign
import pandas as pd
import pytest
from command_line import invoke, succeed
from small_release import JOB, survey

import dpdist
from dpdist.core.errors import WorkspaceError
from dpdist.core.files import sha256
from dpdist.core.minisign import PublicKey, SecretKey, SignatureError, unsigned
from dpdist.core.public_files import MANIFEST, SIGNATURE, UNFIT, canonical, release_id
from dpdist.opening.verifying import problems, sign
from dpdist.publish.folder import publish
from dpdist.publish.released import read_released


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace, and its input beside it."""
    folder = tmp_path_factory.mktemp("released")
    survey().head(300).to_parquet(folder / "survey.parquet")
    job = dpdist.parse_job(JOB.replace("survey: {", f"input: {{path: {folder}/survey.parquet}}\nsurvey: {{"))
    dpdist.run(job, folder / "ws")
    return folder / "ws"


@pytest.fixture
def public(released: Path, tmp_path: Path) -> Path:
    shutil.copytree(released / "public", tmp_path / "ws" / "public")
    return tmp_path / "ws" / "public"


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return SecretKey.from_os()


def files(public: Path) -> list[str]:
    return sorted(path.relative_to(public).as_posix() for path in public.rglob("*") if path.is_file())


def verify(public: Path, *more: str) -> tuple[int, list[str]]:
    done = invoke("verify", public, *more)
    return done.exit_code, done.output.splitlines()


def first_line(public: Path, *more: str) -> tuple[int, str]:
    """The lines after it say what was derived again, and what could not be checked."""
    code, lines = verify(public, *more)
    return code, lines[0]


def vouch(public: Path, **edits: object) -> None:
    """Write the manifest again as dpdist would, of the files as they are: what a forger can do."""
    said = json.loads((public / MANIFEST).read_text()) | edits
    said["files"] = {name: sha256(public / name) for name in files(public) if name not in (MANIFEST, SIGNATURE)}
    (public / MANIFEST).write_bytes(canonical(said | {"release": release_id(said)}))


def edit(path: Path, **edits: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | edits))


def test_a_release_is_whole_whatever_its_folder_is_called(public: Path) -> None:
    assert first_line(public.parent) == (0, f"complete: {public}")
    moved = public.rename(public.with_name("downloaded"))
    assert first_line(moved) == (0, f"complete: {moved}")


def test_every_flipped_bit_is_named(public: Path) -> None:
    """Of every file at four places, and of the manifest at many more."""
    flips = 0
    for name in files(public):
        path = public / name
        good = path.read_bytes()
        places = range(0, len(good), 29) if name == MANIFEST else {0, len(good) // 3, len(good) // 2, len(good) - 1}
        for at in places:
            path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            lines = problems(public)
            assert lines, f"{name} at {at}"
            assert lines[0].startswith((name, MANIFEST)), f"{name} at {at}: {lines}"
            assert name == MANIFEST or len(lines) == 1
            flips += 1
        path.write_bytes(good)
    assert flips >= 100
    assert problems(public) == [], "control"


def test_changed_missing_and_added_files_have_a_line_each(public: Path) -> None:
    (public / "tables" / "counts.csv").write_text("changed")
    (public / "released" / "seed").unlink()
    (public / "synthetic").rename(public / "records")
    (public / "tables" / "more.csv").write_text("added")
    code, lines = verify(public)
    assert code == 1
    assert [line.partition(":")[0] for line in lines] == [
        "released/seed",
        "synthetic/set-1.csv",
        "synthetic/set-1.parquet",
        "tables/counts.csv",
        "records/set-1.csv",
        "records/set-1.parquet",
        "tables/more.csv",
    ]
    assert lines[0] == "released/seed: no such file"


def test_report_and_publish_refuse_what_is_not_whole(public: Path) -> None:
    assert "small 2021" in dpdist.report(public.parent), "control"
    (public / "tables" / "counts.csv").write_text("changed")
    for act in (dpdist.report, dpdist.publish):
        with pytest.raises(WorkspaceError, match=r"tables/counts\.csv: it is not the file"):
            act(public.parent)
    assert (public / "tables" / "counts.csv").read_text() == "changed"


def test_publish_makes_a_missing_table_again_and_report_does_not_go_on_without_it(public: Path) -> None:
    """What was released must be there: nothing follows without it."""
    whole = {name: (public / name).read_bytes() for name in files(public)}
    for name in ("tables/counts.csv", "statement.json"):
        (public / name).unlink()
        with pytest.raises(WorkspaceError, match="no such file"):
            dpdist.report(public.parent)
        dpdist.publish(public.parent)
        assert {name: (public / name).read_bytes() for name in files(public)} == whole
    (public / "released" / "seed").unlink()
    with pytest.raises(WorkspaceError, match="released/seed: no such file"):
        dpdist.publish(public.parent)


FORGED: dict[str, Callable[[Path], None]] = {
    "less spent": lambda public: edit(public / "statement.json", epsilon="0.3"),
    "another guarantee": lambda public: edit(public / "released" / "promise.json", guarantee="asymptotic"),
    "another job": lambda public: edit(
        public / "released" / "job.json",
        budget=json.loads((public / "released" / "job.json").read_text())["budget"] | {"epsilon": "300"},
    ),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_statement_whose_figures_do_not_follow_from_its_job_is_named(public: Path, how: str) -> None:
    """Its forger has written the manifest again: every checksum holds."""
    FORGED[how](public)
    vouch(public)
    lines = problems(public)
    assert lines
    assert all(line.startswith(("statement.json:", "released/promise.json:", "released/proof.json:")) for line in lines)
    for act in (dpdist.report, dpdist.publish):
        with pytest.raises(WorkspaceError, match="which follows from its job"):
            act(public.parent)


@pytest.mark.parametrize(("format", "found"), [(None, "no format"), (2, "format 2"), ("1", 'format "1"')])
def test_another_format_is_said_to_be_one(public: Path, format: object, found: str) -> None:
    said = json.loads((public / MANIFEST).read_text())
    if format is None:
        (public / MANIFEST).write_text(json.dumps({name: said[name] for name in ("files", "job", "versions")}))
    else:
        vouch(public, format=format)
    assert [line.startswith(f"manifest.json: {found}") for line in problems(public)] == [True]


def test_a_replayed_folder_is_never_whole(public: Path) -> None:
    (public / UNFIT).write_text("of a replay")
    assert verify(public) == (1, [f"{UNFIT}: of a replay"])


class MinisignLibrary:
    """Another implementation of minisign's formats, of the package py-minisign."""

    def generate(self, public: Path, secret: Path) -> None:
        pair = minisign.KeyPair.generate()
        public.write_bytes(bytes(pair.public_key))
        secret.write_bytes(bytes(pair.secret_key))

    def sign(self, secret: Path, file: Path, hashed: bool) -> None:
        signature = minisign.SecretKey.from_file(secret).sign(file.read_bytes(), prehash=hashed, trusted_comment="a file")
        file.with_name(f"{file.name}.minisig").write_bytes(bytes(signature))

    def verified(self, public: Path, file: Path) -> str:
        """The trusted comment of a signature that is right."""
        signature = minisign.Signature.from_file(file.with_name(f"{file.name}.minisig"))
        minisign.PublicKey.from_file(public).verify_file(file)
        return signature.trusted_comment


class MinisignProgram:
    """The program of minisign's author, as Debian has it."""

    def generate(self, public: Path, secret: Path) -> None:
        self._run("-G", "-W", "-p", public, "-s", secret)

    def sign(self, secret: Path, file: Path, hashed: bool) -> None:
        self._run("-S", *([] if hashed else ["-l"]), "-s", secret, "-m", file)

    def verified(self, public: Path, file: Path) -> str:
        lines = self._run("-V", "-p", public, "-m", file).splitlines()
        return next(line for line in lines if line.startswith("Trusted comment: ")).removeprefix("Trusted comment: ")

    def _run(self, *arguments: str | Path) -> str:
        done = subprocess.run(["minisign", *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(params=[MinisignLibrary, pytest.param(MinisignProgram, marks=pytest.mark.system)])
def other(request: pytest.FixtureRequest) -> MinisignLibrary | MinisignProgram:
    """Somebody else's minisign."""
    made: MinisignLibrary | MinisignProgram = request.param()
    return made


def test_minisign_accepts_what_dpdist_signs(public: Path, tmp_path: Path, other: MinisignLibrary | MinisignProgram) -> None:
    """With keys that dpdist has made. Control: not after the file has changed."""
    secret, line = tmp_path / "agency.key", ["verify", str(public), "--key", str(tmp_path / "agency.key.pub")]
    succeed("keygen", secret)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert invoke("keygen", secret).exit_code == 1, "a key is not overwritten"
    succeed("sign", public, "--key", secret)
    succeed(*line)
    comment = other.verified(Path(f"{secret}.pub"), public / MANIFEST)
    name = json.loads((public / MANIFEST).read_text())["release"]
    assert comment == f"dataset:small period:2021 release:{name}"
    (public / MANIFEST).write_bytes((public / MANIFEST).read_bytes() + b" ")
    with pytest.raises((AssertionError, minisign.VerifyError)):
        other.verified(Path(f"{secret}.pub"), public / MANIFEST)


@pytest.mark.parametrize("hashed", [True, False], ids=["hashed", "as it is"])
def test_dpdist_accepts_what_minisign_signs(
    public: Path, tmp_path: Path, other: MinisignLibrary | MinisignProgram, hashed: bool
) -> None:
    """With keys of either; as it is: as versions of minisign before 0.6 signed."""
    other.generate(tmp_path / "pub", tmp_path / "sec")
    key = SecretKey.read(tmp_path / "sec")
    (tmp_path / "copy").write_text(key.text)
    for secret in ("sec", "copy"):
        other.sign(tmp_path / secret, public / MANIFEST, hashed)
        assert first_line(public, "--key", f"{tmp_path}/pub") == (0, f"complete: {public}")
        assert verify(public, "--key", key.public.text.splitlines()[1])[0] == 0
    assert key.public == PublicKey.parse((tmp_path / "pub").read_text())


def test_another_key_no_signature_and_a_changed_one_are_named(public: Path, key: SecretKey) -> None:
    assert problems(public, key.public) == [f"{SIGNATURE}: no such file"]
    sign(public, key)
    assert problems(public, key.public) == []
    other = SecretKey.from_os().public
    (line,) = problems(public, other)
    assert line == f"{SIGNATURE}: signed by another key, {key.public.name}, and not by {other.name}"
    namesake = PublicKey(key.public.number, other.key)
    assert problems(public, namesake) == [f"{SIGNATURE}: the signature belongs to another file"]


def test_every_changed_character_of_a_signature_is_found(public: Path, key: SecretKey) -> None:
    """But for its first line, the comment that nobody signs."""
    sign(public, key)
    path = public / SIGNATURE
    good = path.read_text()
    for at in range(len("untrusted comment: signature from dpdist\n"), len(good) - 1):
        path.write_text(good[:at] + ("A" if good[at] != "A" else "B") + good[at + 1 :])
        assert unsigned(public, key.public), good[at - 5 : at + 5]
    assert problems(public, key.public) == [f"{SIGNATURE}: {unsigned(public, key.public)}"]
    path.write_text(good)
    assert problems(public, key.public) == []


def test_a_forger_without_the_key_is_found_out(public: Path, key: SecretKey) -> None:
    """What no checksum shows: all that follows from another seed, and the manifest written again."""
    sign(public, key)
    (public / "tables" / "counts.csv").write_text("field,sex,estimate\n")
    vouch(public)
    assert problems(public) == ["tables/counts.csv: differs from what follows from released/: 1 lines, not 37"]
    (public / "released" / "seed").write_text(f"{'ab' * 32}\n")
    vouch(public)
    publish(read_released(public / "released"), public)
    assert problems(public) == [], "control"
    assert problems(public, key.public) == [f"{SIGNATURE}: no such file"]


def test_what_is_not_whole_or_repeats_a_run_is_not_signed(public: Path, key: SecretKey) -> None:
    (public / UNFIT).write_text("of a replay")
    with pytest.raises(WorkspaceError, match="not signed"):
        sign(public, key)
    (public / UNFIT).unlink()
    (public / "tables" / "counts.csv").unlink()
    with pytest.raises(WorkspaceError, match="not signed"):
        sign(public, key)


def test_a_signature_stays_while_the_manifest_does(public: Path, key: SecretKey) -> None:
    """Published again by the same code, a release is the same bytes; otherwise its signature would be another's."""
    sign(public, key)
    dpdist.publish(public.parent)
    assert problems(public, key.public) == []
    vouch(public, date="1999-01-01")
    dpdist.publish(public.parent)
    assert not (public / SIGNATURE).exists()
    assert problems(public) == []


def test_a_replay_has_the_day_of_the_run_that_it_repeats(released: Path, tmp_path: Path) -> None:
    source = tmp_path / "ws"
    shutil.copytree(released, source)
    edit(source / "confidential" / "identity.json", date="2019-12-31")
    job = dpdist.parse_job(JOB.replace("survey: {", f"input: {{path: {released.parent}/survey.parquet}}\nsurvey: {{"))
    dpdist.run(job, tmp_path / "again", replay=source / "confidential")
    assert json.loads((tmp_path / "again" / "public" / MANIFEST).read_text())["date"] == "2019-12-31"


@pytest.mark.parametrize("text", ["", "RWQ", "not a key\n" * 3])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(SignatureError):
        PublicKey.parse(text)
    with pytest.raises(SignatureError):
        SecretKey.read(tmp_path / "key")


def test_no_key_is_shown_by_accident() -> None:
    key = SecretKey.from_os()
    assert key.seed.hex() not in repr(key)
    assert str(key.seed) not in repr(key)


def test_a_release_whose_universe_is_over_no_column_of_its_table_is_verified(tmp_path: Path) -> None:
    """Cells inside and outside the universe are measured apart, and `measurements.parquet` says which is which."""
    text = JOB.replace("strata: [field]\n", "")
    text = (
        text.replace("by: [field, sex], statistics", "by: [field], universe: {sex: [f]}, statistics") + "publish: always\n"
    )
    release = dpdist.run(dpdist.parse_job(text), tmp_path / "ws", survey())
    assert problems(release.folder) == []
    measured = pd.read_parquet(release / "measurements.parquet")
    cells = measured[measured["table"] == "field x universe 1"].groupby(["cell field", "cell universe 1"]).size()
    assert sorted(cells.index) == [(field, side) for field in ("arts", "law") for side in ("inside", "outside")]
