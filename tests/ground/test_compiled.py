"""What a process compiles is kept, shared by models that are alike, and let go."""

import functools
import sys
import threading
import types

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import epvi
import epvi.models
from epvi.ground import compiled
from epvi.site.derivatives.passes import programs_of as compiled_for
from epvi.site.model.likeness import likeness

ROWS = {"x": np.linspace(-1, 1, 12).reshape(6, 2), "y": np.asarray([0.0, 1, 1, 0, 1, 0])}


def line(x, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


SCALE = 1.0
CONSTANTS = {"scale": np.ones(2)}


def with_globals(x, y=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(x.shape[1]), SCALE).to_event(1))
    numpyro.sample("y", dist.Normal(x @ (CONSTANTS["scale"] * w), _width()), obs=y)


def _width():
    return SCALE


def closed_over(scale):
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(x.shape[1]), scale).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    return model


class Linear:
    def __init__(self, scale):
        self.scale = scale

    def model(self, x, y=None):
        return closed_over(self.scale)(x, y)

    def __call__(self, x, y=None):
        return self.model(x, y)


@pytest.fixture
def compilations():
    """How many programs were compiled since it was last asked."""
    seen = []

    def listen(event, duration_secs, **_):
        if event == compiled._COMPILED:
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)

    def number():
        count = len(seen)
        seen.clear()
        return count

    yield number
    jax.monitoring.unregister_event_duration_listener(listen)


# Models that are alike have one key.


@pytest.mark.parametrize(
    "make",
    [
        lambda: line,
        lambda: closed_over(2.0),
        lambda: closed_over(np.arange(1.0, 3.0)),
        lambda: functools.partial(line),
        lambda: Linear(2.0),
        lambda: Linear(2.0).model,
        lambda: functools.wraps(line)(lambda x, y=None: line(x, y)),
        lambda: epvi.models.logistic,
        lambda: with_globals,
        lambda: {"prior": dist.Normal(0.0, 1.0), "support": dist.constraints.interval(0.0, 1.0)},
    ],
)
def test_what_is_made_twice_is_alike(make):
    assert likeness(make()) == likeness(make()) is not None


def test_a_model_that_travelled_is_alike():
    sent = cloudpickle.dumps(closed_over(np.arange(1.0, 3.0)))
    assert likeness(cloudpickle.loads(sent)) == likeness(cloudpickle.loads(sent)) is not None


# And what differs in anything has another.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (closed_over(2.0), closed_over(3.0)),
        (closed_over(2.0), closed_over(2)),
        (closed_over(np.arange(2.0)), closed_over(np.arange(2.0) + 1e-12)),
        (closed_over(np.zeros(2)), closed_over(-np.zeros(2))),
        (closed_over(np.zeros(2)), closed_over(np.zeros(2, np.float32))),
        (closed_over(np.zeros(2)), closed_over(jnp.zeros(2))),
        (functools.partial(line, y=1), functools.partial(line, y=2)),
        (Linear(2.0), Linear(3.0)),
        (Linear(2.0).model, Linear(3.0).model),
        (lambda x, y=1: y, lambda x, y=2: y),
        (lambda x, *, y=1: y, lambda x, *, y=2: y),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x: x.a, lambda x: x.b),
        ([closed_over(1.0), closed_over(2.0)], [closed_over(2.0), closed_over(1.0)]),
    ],
)
def test_what_differs_is_not_alike(one, other):
    assert None not in (likeness(one), likeness(other))
    assert likeness(one) != likeness(other)


def test_globals_count_as_they_are_now(monkeypatch):
    before = likeness(with_globals)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    changed = likeness(with_globals)
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    assert likeness(with_globals) == before != changed
    CONSTANTS["scale"][0] = 5.0
    try:
        assert likeness(with_globals) != before
    finally:
        CONSTANTS["scale"][0] = 1.0
    assert likeness(with_globals) == before
    # A function that it calls has another body.
    monkeypatch.setitem(globals(), "_width", lambda: 2 * SCALE)
    assert likeness(with_globals) != before


def test_what_a_module_of_the_user_holds_counts(monkeypatch):
    settings = types.ModuleType("settings_of_a_test")
    settings.SCALE = 1.0
    monkeypatch.setitem(sys.modules, "settings_of_a_test", settings)
    monkeypatch.setitem(globals(), "settings", settings)
    model = eval("lambda x: x * settings.SCALE", globals())
    before = likeness(model)
    settings.OTHER = 1.0
    assert likeness(model) == before is not None
    settings.SCALE = 2.0
    assert likeness(model) != before


def test_a_function_defined_again_is_alike_only_with_the_same_body():
    def define(body):
        space = {"__name__": "__main__"}
        exec(f"def model(x):\n    return {body}", space)
        return space["model"]

    assert likeness(define("x + 1")) == likeness(define("x + 1")) != likeness(define("x - 1"))


def imports(x):
    import os

    return x * len(os.environ)


def counts(x):
    global SCALE
    SCALE += 1
    return x


class Strange:
    def __getstate__(self):
        return {}

    def __call__(self, x):
        return x


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x * np.random.default_rng().normal(),
        lambda x: x * getattr(np, "pi"),  # noqa: B009
        lambda x: eval("x"),
        lambda x: x * len(globals()),
        imports,
        counts,
        Strange(),
        closed_over(np.asarray([object()])),
        closed_over(np.ma.masked_array([1.0])),
        closed_over(threading.Lock()),
        closed_over(jax.random.key(0)),
        closed_over(iter([1])),
        closed_over({object()}),
        jax.custom_jvp(lambda x: x),
    ],
)
def test_in_doubt_nothing_is_alike(value):
    assert likeness(value) is None


def test_a_jitted_function_is_alike_only_with_itself():
    one, other = (jax.jit(lambda x: x + 1) for _ in range(2))
    assert likeness(closed_over(one)) == likeness(closed_over(one)) is not None
    assert likeness(closed_over(one)) != likeness(closed_over(other))


# Models that are alike share what was compiled.


def programs_of(model, **fixed):
    return compiled_for(epvi.Model(model, **fixed), ROWS)


def test_models_share_programs_only_when_they_are_alike():
    assert programs_of(line) is programs_of(line)
    assert programs_of(closed_over(2.0)) is programs_of(closed_over(2.0)) is not programs_of(closed_over(3.0))
    sent = cloudpickle.dumps(epvi.Model(closed_over(2.0)))
    assert compiled_for(cloudpickle.loads(sent), ROWS) is compiled_for(cloudpickle.loads(sent), ROWS)
    rows = {name: column.astype(np.float32) for name, column in ROWS.items()}
    assert compiled_for(epvi.Model(line), rows) is not programs_of(line)


def test_fixed_arguments_and_exchangeable_groups_count():
    def model(x, a, y=None):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), a).to_event(1))
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    one = programs_of(model, a=np.ones(2))
    assert programs_of(model, a=np.ones(2)) is one
    assert programs_of(model, a=np.full(2, 2.0)) is not one
    assert compiled_for(epvi.Model(model, exchangeable=[("w",)], a=np.ones(2)), ROWS) is not one


def test_log_densities_share_too():
    def made(scale):
        return compiled_for(
            epvi.Model.from_log_density(
                lambda v: -0.5 * jnp.sum(v["w"] ** 2), lambda v, rows: scale * rows["x"] @ v["w"], {"w": 2}
            ),
            ROWS,
        )

    assert made(1.0) is made(1.0) is not made(2.0)


def test_a_model_in_doubt_shares_with_nobody_but_itself():
    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(2), getattr(np, "pi")).to_event(1))  # noqa: B009
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    one = epvi.Model(model)
    assert compiled_for(one, ROWS) is compiled_for(one, ROWS) is not programs_of(model)


def test_a_model_that_changed_keeps_its_programs_for_itself(monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    first = epvi.Model(with_globals)
    programs = compiled_for(first, ROWS)
    assert compiled_for(epvi.Model(with_globals), ROWS) is programs
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert compiled_for(first, ROWS) is programs
    # What this one compiles from now on is of another time, also when the old one comes back.
    monkeypatch.setitem(globals(), "SCALE", 1.0)
    assert compiled_for(first, ROWS) is programs
    assert compiled_for(epvi.Model(with_globals), ROWS) is not programs


def test_a_function_is_fitted_and_updated_again_without_compiling(compilations):
    def fits(model):
        parts = [{name: column[m::2] for name, column in ROWS.items()} for m in range(2)]
        return [epvi.fit_shard(model, part, f"{m}/2") for m, part in enumerate(parts, start=1)]

    first = fits(closed_over(2.0))
    compilations()
    again = fits(closed_over(2.0))
    assert compilations() == 0
    np.testing.assert_array_equal(first[0].mixture.means, again[0].mixture.means)
    other = fits(closed_over(0.1))
    assert compilations() > 0
    assert np.max(np.abs(other[0].mixture.means - first[0].mixture.means)) > 0.01


def test_a_late_shard_costs_no_compilation(compilations):
    m = 6
    parts = [ROWS | {"y": ROWS["y"] + k} for k in range(m)]
    fits = [epvi.fit_shard(line, part, f"{k}/{m}", seed=0) for k, part in enumerate(parts, start=1)]
    waiting = [epvi.stand_in(line, ROWS, f"{k}/{m}") for k in range(4, m + 1)]
    posterior = epvi.combine([*fits[:3], *waiting])
    compilations()
    for fit in fits[3:]:
        posterior = posterior.update(fit)
    assert compilations() == 0
    whole = epvi.combine(fits)
    np.testing.assert_allclose(posterior.mixture.means, whole.mixture.means, rtol=1e-12)
    # One more or less of them is the same program as well.
    epvi.multiply([fit.mixture for fit in fits[:-1]])
    assert compilations() == 0


# The bound.


@pytest.fixture
def empty_table(monkeypatch):
    monkeypatch.setattr(compiled, "_held", type(compiled._held)())
    monkeypatch.setattr(compiled, "_give_back", lambda: None)


@compiled.compiled
def doubled(x, times=2):
    return float(times) * x


def test_each_kind_of_arguments_is_compiled_once(empty_table, compilations):
    for _ in range(3):
        np.testing.assert_array_equal(doubled(np.ones(3, np.float32)), 2 * np.ones(3))
    assert compiled.num_held() == 1
    assert doubled(np.ones(3, np.float32), True)[0] == 1
    assert doubled(np.ones(3, np.float32), times=1)[0] == 1
    assert compiled.num_held() == 3
    # One inside another program is part of that.
    assert jax.jit(lambda x: doubled(x))(np.ones(4, np.float32))[0] == 2
    assert compiled.num_held() == 3


def test_what_was_not_used_for_longest_is_given_up(empty_table, monkeypatch, compilations):
    monkeypatch.setattr(compiled, "MOST", 6)
    for n in range(1, 7):
        doubled(np.ones(n, np.float32))
    compiled.let_go()
    assert compiled.num_held() == 6
    doubled(np.ones(1, np.float32))
    doubled(np.ones(7, np.float32))
    compilations()
    compiled.let_go()
    assert compiled.num_held() == 3
    for n in (6, 1, 7):
        doubled(np.ones(n, np.float32))
    assert compilations() == 0
    doubled(np.ones(2, np.float32))
    assert compilations() == 1


def test_the_bound_leaves_the_users_programs(empty_table, monkeypatch, compilations):
    monkeypatch.setattr(compiled, "MOST", 0)
    users = jax.jit(lambda x: x + 3)
    users(np.ones(3, np.float32))
    doubled(np.ones(3, np.float32))
    compilations()
    compiled.let_go()
    assert compiled.num_held() == 0
    users(np.ones(3, np.float32))
    assert compilations() == 0


def test_verbs_keep_to_the_bound_when_they_are_done_and_not_before(empty_table, monkeypatch):
    monkeypatch.setattr(compiled, "MOST", 4)
    during = []
    monkeypatch.setattr(
        "epvi.site.tasks.fit_shard.fit_columns",
        _then(epvi.site.tasks.fit_shard.fit_columns, lambda: during.append(compiled.num_held())),
    )
    fit = epvi.fit_shard(line, ROWS, "1/1")
    assert fit.status.ok
    assert during[0] > 4
    assert compiled.num_held() <= 4


def _then(function, after):
    def both(*args, **kwargs):
        made = function(*args, **kwargs)
        after()
        return made

    return both


def test_a_process_of_epvis_own_empties_jaxs_caches_too(empty_table, monkeypatch):
    cleared = []
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(True))
    monkeypatch.setattr(compiled, "_seen", compiled.MOST)
    compiled.let_go(own_process=True)
    assert not cleared
    doubled(np.ones(11, np.float32))
    compiled.let_go()
    assert not cleared
    compiled.let_go(own_process=True)
    assert cleared
    assert compiled.num_held() == 0
    assert compiled._seen == 0


def test_threads_share_the_table_while_it_is_cut(empty_table, monkeypatch):
    monkeypatch.setattr(compiled, "MOST", 3)
    failed = []

    def work(first):
        try:
            for n in range(first, first + 8):
                assert np.sum(doubled(np.ones(n % 5 + 1, np.float32))) == 2 * (n % 5 + 1)
                compiled.let_go()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert compiled.num_held() <= 3
