"""A file is there whole or not at all, who may read it stays as it was, and a killed write leaves nothing for long."""

import os
import signal
import stat
import subprocess
import sys
import threading

import numpy as np
import pytest
from commands import call, environment
from sentences import refused
from some_fits import some_fit

from epvi import EpviError
from epvi.ground import atomic
from epvi.ground.atomic import write_whole

# A process that stops between the write and the rename, and says so.
STOPPED = """
import os, sys, time
from epvi.ground import atomic
def stop(part, target):
    print(part, flush=True)
    time.sleep(600)
atomic.os.replace = stop
atomic.write_whole(sys.argv[1], b"half of it")
"""


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def stopped(tmp_path):
    """A process that is in the middle of writing `tmp_path / "file"`."""
    script = [sys.executable, "-c", STOPPED, str(tmp_path / "file")]
    process = subprocess.Popen(script, stdout=subprocess.PIPE, env=environment(), text=True)
    assert process.stdout is not None
    part = process.stdout.readline().strip()
    assert os.path.exists(part)
    yield process
    process.kill()
    process.communicate()


def test_a_file_keeps_its_mode_and_a_new_one_has_that_of_the_umask(tmp_path, umask):
    file = tmp_path / "file"
    assert write_whole(file, b"new") == file
    assert mode_of(file) == 0o644
    for mode in (0o640, 0o600, 0o664, 0o400):
        file.chmod(mode)
        write_whole(file, b"newer")
        assert mode_of(file) == mode
    os.umask(0o077)
    write_whole(tmp_path / "own", b"")
    assert mode_of(tmp_path / "own") == 0o600
    assert sorted(os.listdir(tmp_path)) == ["file", "own"]


def test_every_writer_goes_through_the_same_door(tmp_path, monkeypatch):
    """A fit, statistics and constants in a study: 0640 stays 0640."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("a,y\n" + "1,2\n2,3\n" * 9)
    (tmp_path / "study.toml").write_text('model = "logistic"\nshards = ["n"]\n[arguments]\nx = ["a"]\ny = "y"\n')
    stats = ("stats", "study.toml", "--rows", "rows.csv", "-o", "s.epvi")
    pool = ("pool", "s.epvi", "--into", "study.toml")
    for write, name in [
        (lambda: call(*stats), "s.epvi"),
        (lambda: call(*pool), "study.toml"),
        (lambda: some_fit().save("f.epvi"), "f.epvi"),
    ]:
        write()
        os.chmod(name, 0o640)
        inode = os.stat(name).st_ino
        write()
        assert mode_of(name) == 0o640
        assert os.stat(name).st_ino != inode


def test_a_replacement_is_nobody_elses_to_read_before_it_has_the_mode(tmp_path, monkeypatch, umask):
    file = tmp_path / "file"
    write_whole(file, b"secret")
    file.chmod(0o600)
    seen = []
    replace = os.replace
    monkeypatch.setattr(atomic.os, "replace", lambda part, to: (seen.append(mode_of(part)), replace(part, to)))
    monkeypatch.setattr(atomic.os, "fchmod", lambda file, mode: seen.append(stat.S_IMODE(os.fstat(file).st_mode)))
    write_whole(file, b"secret too")
    assert seen == [0o600, 0o600]


def test_a_group_that_cannot_be_given_gets_no_rights(tmp_path, monkeypatch):
    file = tmp_path / "file"
    write_whole(file, b"")
    file.chmod(0o664)
    status = os.stat(file)
    other = os.stat_result([*status[:5], status.st_gid + 1, *status[6:10]])
    monkeypatch.setattr(atomic, "_status", lambda target: other)

    def refuse(*arguments):
        raise PermissionError

    monkeypatch.setattr(atomic.os, "fchown", refuse)
    write_whole(file, b"")
    assert mode_of(file) == 0o604


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path):
    (tmp_path / "real").mkdir()
    link, file = tmp_path / "link", tmp_path / "real" / "file"
    link.symlink_to("real/file")
    for content in (b"made", b"replaced"):
        assert write_whole(link, content) == link
        assert link.is_symlink()
        assert file.read_bytes() == content
        assert not file.is_symlink()
    assert sorted(os.listdir(tmp_path / "real")) == ["file"]
    (tmp_path / "loop").symlink_to("loop")
    refused(lambda: write_whole(tmp_path / "loop", b""), "loop cannot be written: Too many levels")
    assert os.readlink(tmp_path / "loop") == "loop"
    (tmp_path / "nowhere").symlink_to("no/file")
    refused(lambda: write_whole(tmp_path / "nowhere", b""), "nowhere cannot be written: No such file")
    fit = some_fit().save(tmp_path / "fit.epvi")
    assert "there is no folder" in call("combine", fit, "-o", tmp_path / "nowhere", code=1).stderr


def test_only_ordinary_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    refused(lambda: write_whole(tmp_path / "pipe", b""), "pipe is no ordinary file")
    refused(lambda: write_whole(tmp_path / "folder", b""), "folder is a folder")
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_the_file_and_then_its_folder_are_flushed(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace

    def flushed(file):
        done.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        fsync(file)

    monkeypatch.setattr(atomic.os, "fsync", flushed)
    monkeypatch.setattr(atomic.os, "replace", lambda part, to: (done.append("rename"), replace(part, to)))
    write_whole(tmp_path / "file", b"")
    assert done == ["file", "rename", "folder"]

    def unable(file):
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(atomic.os, "fsync", unable)
    write_whole(tmp_path / "file", b"on a file system whose folders cannot be flushed")


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / "file"
    write_whole(file, b"before")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(EpviError, match="file cannot be written: No space left on device"):
        write_whole(file, b"after")
    assert file.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_write_has_left_is_removed_by_the_next(tmp_path, stopped):
    file = tmp_path / "file"
    assert not file.exists()
    # Whoever writes now does not harm the other, who lives.
    write_whole(file, b"another")
    left = [name for name in os.listdir(tmp_path) if name.endswith(".part")]
    assert len(left) == 1
    assert f".{stopped.pid}-" in left[0]
    os.kill(stopped.pid, signal.SIGKILL)
    stopped.wait()
    assert file.read_bytes() == b"another"
    # Those of other files, of other machines, and what only looks like one are left alone.
    others = [left[0].replace(".file.", ".file2."), left[0].replace(f"-{atomic._host()}-", "-00000000-"), ".file.part"]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    write_whole(tmp_path / "elsewhere", b"")
    assert left[0] in os.listdir(tmp_path)
    write_whole(file, b"whole")
    assert file.read_bytes() == b"whole"
    assert sorted(os.listdir(tmp_path)) == sorted(["file", "elsewhere", *others])


def test_parts_of_others_and_of_this_process_are_not_leftovers(tmp_path, monkeypatch):
    part = tmp_path / f".file.{os.getpid()}-{atomic._host()}-01234567.part"
    part.write_bytes(b"")
    write_whole(tmp_path / "file", b"")
    assert part.exists()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    foreign = tmp_path / f".file.{dead.pid}-{atomic._host()}-01234567.part"
    foreign.write_bytes(b"")
    monkeypatch.setattr(atomic.os, "getuid", lambda: os.stat(foreign).st_uid + 1)
    write_whole(tmp_path / "file", b"")
    assert foreign.exists()


def test_long_names_and_many_threads_are_no_trouble(tmp_path):
    name = "ö" * 120 + ".epvi"
    contents = [bytes([i]) * 1000 for i in range(8)]
    threads = [threading.Thread(target=write_whole, args=(tmp_path / name, content)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / name).read_bytes() in contents
    assert os.listdir(tmp_path) == [name]


def test_predictions_are_replaced_in_the_same_way(tmp_path):
    from epvi.cli.verbs.predict import write_predictions

    for ending in ("csv", "parquet", "npz"):
        file = tmp_path / f"predicted.{ending}"
        write_predictions(file, {"y": np.ones((3, 4))})
        file.chmod(0o640)
        write_predictions(file, {"y": np.zeros((3, 4))})
        assert mode_of(file) == 0o640
