"""Rows in files for workers: the same rows, nothing held, and nothing of the user's touched."""

import errno
import os
import time

import jax
import numpy as np
import pytest
from sentences import refused

import epvi
from epvi.ground.errors import EpviError
from epvi.models import logistic
from epvi.run import row_files as store
from epvi.run.row_files import write_rows
from epvi.site.rows import spill as storage
from epvi.site.rows.columns import let_go
from epvi.site.rows.split import split_by, split_evenly

N = 1003
COLUMNS = {
    "x": np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32),
    "y": np.arange(N),
    "z": np.random.default_rng(1).normal(size=(N, 2, 2))[:, ::-1],
    "b": np.arange(N) % 3 == 0,
    "none": np.zeros((N, 0)),
}
SPLITS = {
    "dealt": split_evenly(N, 4, shuffle=True, key=jax.random.key(0)),
    "runs": split_evenly(N, 4, shuffle=False, key=jax.random.key(0)),
    "all": split_evenly(N, 1, shuffle=True, key=jax.random.key(0)),
    "by": split_by({"g": np.arange(N) % 7}, "g"),
}


@pytest.mark.parametrize("name", SPLITS)
def test_each_shard_maps_its_own_rows(name, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_PIECE", 1000)
    split = SPLITS[name]
    made = write_rows(COLUMNS, split, tmp_path, 2)
    assert len(made) == split.num_shards
    for mapped, rows in zip(made, split.shards, strict=True):
        columns = mapped.columns()
        assert list(columns) == list(COLUMNS)
        for column, there in columns.items():
            np.testing.assert_array_equal(there, COLUMNS[column][rows])
            assert there.dtype == COLUMNS[column].dtype
            assert not there.flags.writeable


def test_rows_that_were_let_go_are_there_again(tmp_path):
    columns = {"x": np.random.default_rng(0).normal(size=(40_000, 3))}
    mapped = write_rows(columns, split_evenly(40_000, 2, shuffle=False, key=jax.random.key(0)), tmp_path, 1)[
        1
    ].columns()
    before = resident()
    assert mapped["x"].sum() != 0
    read = resident()
    let_go(mapped, 0, 20_000)
    # 20,000 rows of 24 bytes, and whole pages of them.
    assert read - before > 400_000
    assert read - resident() > 400_000
    np.testing.assert_array_equal(mapped["x"], columns["x"][20_000:])


def resident():
    """Bytes of this process's memory that are pages of files."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssFile"))


def test_nothing_is_let_go_of_what_the_user_mapped(tmp_path):
    """A private map that was written to would lose what was written."""
    np.save(tmp_path / "x.npy", np.zeros(10_000))
    mine = np.load(tmp_path / "x.npy", mmap_mode="c")
    mine[:] = 7.0
    let_go({"x": mine, "y": np.asarray(mine)[5:]}, 0, 10_000)
    assert np.all(mine == 7.0)


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    def full(file, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    refused(
        lambda: write_rows(COLUMNS, SPLITS["dealt"], tmp_path, 2),
        r"rows cannot be written to .* \(No space left on device\): make room, or set TMPDIR",
    )


@pytest.mark.parametrize("name", ["tempfile.mkdtemp", "np.save"])
def test_a_full_temporary_folder_is_one_sentence_from_the_first_file_on(name, monkeypatch):
    def full(*args, **settings):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(f"epvi.run.shards.{name}", full)
    rows = {"x": np.random.default_rng(0).normal(size=(40, 2)), "y": np.arange(40) % 2}
    refused(lambda: epvi.fit(logistic, rows, 2, executor=1), "rows cannot be written to .*No space left.*TMPDIR")


def test_nothing_more_is_written_after_a_failure(tmp_path, monkeypatch):
    begun = []

    def broken(*args):
        begun.append(args)
        time.sleep(0.001)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "_write", broken)
    split = split_evenly(N, 500, shuffle=False, key=jax.random.key(0))
    with pytest.raises(EpviError, match="No space left"):
        write_rows(COLUMNS, split, tmp_path, 1)
    assert len(begun) < 500 * len(COLUMNS)


def test_columns_of_no_width_beside_large_ones_are_held_in_memory(monkeypatch):
    monkeypatch.setattr(storage, "_MOST_IN_MEMORY", 10)
    made = storage.spill(5, {"x": ((3,), np.dtype(float)), "none": ((0,), np.dtype(float))})
    for place in made.values():
        block = place.room(5)
        block[...] = 1.0
        place.keep(block)
    assert isinstance(made["x"], storage.OnDisk)
    assert made["none"].finish().shape == (5, 0)
    np.testing.assert_array_equal(made["x"].finish(), np.ones((5, 3)))
