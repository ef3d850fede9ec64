"""Runs from store to store: complete, checked, and never by a hostile path."""

import io
import os
import tarfile
from pathlib import Path

import pytest
import torch

from deepgat.errors import UserError
from deepgat.files import to_json
from deepgat.lab.experiments import (
    Store,
    export_runs,
    import_runs,
    read_records,
    write_records,
)
from deepgat.lab.experiments import spec as spec_module
from deepgat.lab.experiments.spec import SCHEMA
from deepgat.lab.experiments.store import MARKER
from deepgat.lab.experiments.store_entry import ARRAYS, RECORD, sealed, write_entry

from jobs import arrays_of, record_of, spec


def keep(store: Store, *seeds: int) -> list[str]:
    for seed in seeds:
        wanted = spec(seed=seed)
        with store.claim(wanted.signature) as mine:
            store.add(mine, record_of(wanted), arrays_of(wanted))
    return sorted(spec(seed=seed).signature for seed in seeds)


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def other(tmp_path) -> Store:
    return Store(tmp_path / "other")


@pytest.mark.parametrize("name", ["runs.tar", "runs.tar.gz", "runs.tgz"])
def test_out_and_in_again(store, other, tmp_path, name):
    signatures = keep(store, 0, 1, 2)
    target = tmp_path / "out" / name
    assert export_runs(store, target) == 3
    assert import_runs(other, target) == (signatures, [], {})
    assert list(other.records()) == list(store.records())
    for signature in signatures:
        assert torch.equal(*(s.arrays(signature)["curve.loss"] for s in (store, other)))
    assert import_runs(other, target) == ([], signatures, {})
    assert other.verify() == (3, {})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {name}


def test_some_runs_only(store, other, tmp_path):
    signatures = keep(store, 0, 1)
    assert export_runs(store, tmp_path / "runs.tar", signatures[:1]) == 1
    assert import_runs(other, tmp_path / "runs.tar").added == signatures[:1]


def test_records_alone_read_like_a_store(store, tmp_path):
    keep(store, 0, 1)
    path = tmp_path / "runs.jsonl"
    assert export_runs(store, path) == 2
    assert read_records(path) == read_records(store.folder) == list(store.records())
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1].replace("0.5", "0.9")]))
    with pytest.raises(UserError, match=r"runs\.jsonl, line 2, is not .*: .* was changed"):
        read_records(path)
    with pytest.raises(UserError, match=r"cannot be read: expected a store, or a \.jsonl or"):
        read_records(tmp_path / "none.jsonl")
    write_records(path, [])
    assert read_records(path) == []


def test_records_alone_can_be_compressed(store, tmp_path):
    """The same records make the same bytes; what is cut off is no file of records."""
    keep(store, 0, 1)
    path, again = tmp_path / "runs.jsonl.gz", tmp_path / "again.jsonl.gz"
    assert export_runs(store, path) == 2
    assert read_records(path) == list(store.records())
    write_records(again, reversed(read_records(path)))
    assert again.read_bytes() == path.read_bytes()
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"runs\.jsonl\.gz cannot be read"):
        read_records(path)


def test_a_good_entry_is_never_replaced_and_a_damaged_one_is(store, other, tmp_path):
    (signature,) = keep(store, 0)
    export_runs(store, tmp_path / "runs.tar")
    wanted = spec(seed=0)
    with other.claim(signature) as mine:
        ours = other.add(mine, record_of(wanted, note="ours"), arrays_of(wanted))
    assert import_runs(other, tmp_path / "runs.tar").present == [signature]
    assert other.get(signature) == ours
    (other.path(signature) / RECORD).write_text("{}")
    with pytest.warns(UserWarning, match="is damaged"):
        assert import_runs(other, tmp_path / "runs.tar").added == [signature]
    assert other.get(signature) == store.get(signature)


def test_a_run_in_the_making_is_left_to_its_maker(store, other):
    (signature,) = keep(store, 0)
    with other.claim(signature):
        assert import_runs(other, store.folder).left_out == {
            signature: "another process is making it"
        }


def test_damaged_entries_are_left_out_and_named(store, other, tmp_path):
    first, second, third = keep(store, 0, 1, 2)
    export_runs(store, tmp_path / "runs.tar")
    content = bytearray((tmp_path / "runs.tar").read_bytes())
    with tarfile.open(tmp_path / "runs.tar") as tar:
        member = tar.getmember(f"{second[:2]}/{second}/{ARRAYS}")
    content[member.offset_data + member.size - 1] ^= 1
    (tmp_path / "runs.tar").write_bytes(content)
    result = import_runs(other, tmp_path / "runs.tar")
    assert result.added == [first, third]
    assert result.left_out == {second: f"{ARRAYS} was changed after it was written"}
    assert not list((other.folder / "tmp").iterdir())
    (store.path(third) / ARRAYS).unlink()
    assert "no file" in import_runs(Store(tmp_path / "third"), store.folder).left_out[third]


def tar_of(path: Path, *members: tuple[str, bytes] | tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            header = tarfile.TarInfo(member[0])
            header.size = len(member[1])
            tar.addfile(header, io.BytesIO(member[1]))
    return path


def test_pipes_in_another_store_are_left_out_and_named(store, other):
    good, *odd = keep(store, 0, 1, 2)
    for signature, name in zip(odd, (RECORD, ARRAYS), strict=True):
        (store.path(signature) / name).unlink()
        os.mkfifo(store.path(signature) / name)
    result = import_runs(other, store.folder)
    assert result.added == [good]
    assert result.left_out == {
        signature: f"it has no file {name}"
        for signature, name in zip(odd, (RECORD, ARRAYS), strict=True)
    }


def link(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"ab/{'ab' * 8}/{RECORD}")
    member.type, member.linkname = kind, "/etc/passwd"
    return member


@pytest.mark.parametrize(
    "member",
    [
        ("../evil", b"x"),
        (f"ab/../../../{RECORD}", b"x"),
        link(tarfile.SYMTYPE),
        link(tarfile.LNKTYPE),
        link(tarfile.CHRTYPE),
    ],
    ids=lambda member: str(member[0]) if isinstance(member, tuple) else repr(member.type),
)
def test_a_hostile_tar_is_refused_as_a_whole(store, other, tmp_path, member):
    (signature,) = keep(store, 0)
    good = [
        (str(path.relative_to(store.folder)), path.read_bytes())
        for path in (store.folder / MARKER, *store.path(signature).iterdir())
    ]
    before = sorted(tmp_path.rglob("*"))
    path = tar_of(tmp_path / "runs.tar", *good, member)
    with pytest.raises(UserError, match=r"runs\.tar cannot be read"):
        import_runs(other, path)
    assert sorted(tmp_path.rglob("*")) == sorted([*before, path])


def test_a_tar_that_is_none(other, store, tmp_path):
    keep(store, 0)
    export_runs(store, tmp_path / "runs.tar.gz")
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes((tmp_path / "runs.tar.gz").read_bytes()[:300])
    (tmp_path / "text").write_text("hello")
    tar_of(tmp_path / "other.tar", ("letter.txt", b"x"))
    for name in ("none.tar", "text", "cut.tar.gz", "other.tar"):
        with pytest.raises(UserError, match=rf"{name} (cannot be read|is not a store)"):
            import_runs(other, tmp_path / name)
    assert other.signatures() == []


def test_a_store_is_not_its_own_copy(store, tmp_path):
    keep(store, 0)
    with pytest.raises(UserError, match="is the store itself"):
        import_runs(store, store.folder)
    with pytest.raises(UserError, match="an ending that is not known"):
        export_runs(store, tmp_path / "runs.zip")


def test_runs_of_another_schema_are_left_out_and_named(tmp_path, store, other, monkeypatch):
    """Numbers that the code of today would not give are never taken for today's."""
    (today,) = keep(store, 0)
    monkeypatch.setattr(spec_module, "SCHEMA", SCHEMA - 1)
    wanted = spec(seed=4)
    old = wanted.signature
    folder = store.path(old)
    folder.mkdir(parents=True)
    write_entry(folder, record_of(wanted, schema=SCHEMA - 1), arrays_of(wanted))
    monkeypatch.undo()
    assert old != wanted.signature
    sentence = f"the run {old} has schema {SCHEMA - 1}, but this deepgat reads schema {SCHEMA}"
    with tarfile.open(tmp_path / "runs.tar", "w") as tar:
        tar.add(store.folder, ".")
    for source in (store.folder, tmp_path / "runs.tar"):
        target = Store(tmp_path / f"from {source.name}")
        result = import_runs(target, source)
        assert result.added == [today]
        assert list(result.left_out) == [old]
        assert sentence in result.left_out[old]
        assert target.signatures() == [today]
        assert not list((target.folder / "tmp").iterdir())
    with pytest.raises(UserError, match=sentence):
        store.get(old)
    with pytest.warns(UserWarning, match=f"left out of .*{sentence}"):
        assert [record["signature"] for record in store.records()] == [today]
    with pytest.warns(UserWarning, match=f"left out of .*{sentence}"):
        assert export_runs(store, tmp_path / "today.tar") == 1
    assert store.path(old).is_dir()  # its numbers are good, and it is not set aside
    (tmp_path / "runs.jsonl").write_text((folder / RECORD).read_text().replace("\n", ""))
    with pytest.raises(UserError, match=rf"runs\.jsonl, line 1, .*{sentence}"):
        read_records(tmp_path / "runs.jsonl")


def test_a_record_from_before_schemas_is_named_too(tmp_path):
    record = {**record_of(spec()), "arrays": {"sha256": "", "bytes": 0}}
    del record["schema"]
    (tmp_path / "runs.jsonl").write_text(to_json(sealed(record)))
    with pytest.raises(UserError, match=r"line 1, .* has schema 1, but this deepgat reads schema"):
        read_records(tmp_path / "runs.jsonl")
