"""The command line in a test: run in this process, or in one of its own as a person would."""

import json
import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from epvi.cli import main

SOURCES = str(Path(__file__).parents[1] / "src")

MODEL = """
import numpyro, numpyro.distributions as dist

def linear(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
"""


def call(*arguments, code=0):
    """Run the command in this process, and give what it printed; it must end with this code, and never by accident."""
    result = CliRunner().invoke(main, [str(one) for one in arguments], prog_name="epvi")
    if not isinstance(result.exception, SystemExit | None):
        raise result.exception
    assert result.exit_code == code, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result


def call_json(*arguments, code=0):
    """The one JSON object that it prints."""
    result = call(*arguments, "--json", code=code)
    lines = result.stdout.splitlines()
    assert len(lines) == 1, result.stdout
    said = json.loads(lines[0])
    assert isinstance(said, dict)
    return said


def command(*arguments):
    """The command as a process is started with it."""
    return [sys.executable, "-m", "epvi", *map(str, arguments)]


def environment(**more):
    """This process's environment, with these sources first."""
    return {**os.environ, "PYTHONPATH": SOURCES} | more


def started(*arguments, folder, **options):
    """The command in a process of its own, in a folder."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(*arguments), cwd=folder, env=environment(), **{**pipes, **options})


def ended(process, code=0, timeout=300):
    """What a process printed on stdout and stderr; it must end with this code."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == code, f"{out}\n{err}"
    assert "Traceback" not in err, err
    return out, err


def in_a_process(code, *options, timeout=300, **more):
    """Run a program of its own, with these tests and this epvi in reach; gives what it printed."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(PYTHONPATH=os.pathsep.join((SOURCES, str(Path(__file__).parent))), **more),
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout
