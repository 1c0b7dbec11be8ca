"""The table of claims: judged by numbers, silent about what was not measured."""

from lab import judging

import claims
import publish
import pytest


def timed(strategy, seconds, **more):
    return {"strategy": strategy, "M": 20, "K": 4, "seconds": seconds, "local": seconds, "wall": seconds, **more}


@pytest.mark.parametrize(("seconds", "verdict"), [(1.0, "holds"), (3.0, "does not hold, because")])
def test_the_claim_of_time_is_judged_by_the_ratio(seconds, verdict):
    rows = [timed("NVI", 12.0), timed("EPVI_sample", seconds), timed("EPVI_refined", 2.0)]
    found = judging.faster_with_shards(rows)
    assert found.verdict.startswith(verdict)
    assert f"{12 / seconds:.1f} (M = 20) times less" in found.measured


def product(strategy, m, seconds, nll, k=4):
    return {"strategy": strategy, "M": m, "K": k, "product": seconds, "nll": nll, "components": k**m}


def products(late=False, never=False):
    """The exact product overtakes the chain at M = 6 and K = 4, with `late` at M = 8 and K = 8, or never."""
    rows = []
    for m, k in ((4, 4), (6, 4), (8, 4), (6, 8)):
        slow = not never and (k**m > 5000 if late else k**m > 1000)
        for kind in ("", ", plain loops"):
            rows.append(product(f"EPVI_exact{kind}", m, 5.0 if slow else 0.5, 0.3, k))
            rows.append(product(f"EPVI_sample{kind}", m, 1.0, 0.3, k))
        rows.append(product("EPVI_subset", m, 2.0, 0.3 + 1e-5, k))
        rows.append(product("EPVI_anchored", m, 2.0, 0.3, k))
    return rows


def test_where_the_exact_product_is_overtaken_is_found():
    early, late, never = (judging.exact_explodes(products(*how)) for how in ((), (True,), (False, True)))
    assert "chain from M = 6, K = 4 on" in early.measured
    assert early.verdict == "holds"
    assert "chain from M = 8, K = 8 on" in late.measured
    assert late.verdict == "holds better: the same, later"
    assert never.verdict.startswith("does not hold")


def test_likelihoods_are_compared_size_by_size():
    assert judging.same_as_exact(products()).verdict == "holds"
    assert judging.sample_beats_subset(products()).verdict == "holds"
    spoiled = [{**row, "nll": 0.4} if row["strategy"] == "EPVI_sample" else row for row in products()]
    assert judging.same_as_exact(spoiled).verdict.startswith("does not hold")
    assert judging.sample_beats_subset(spoiled).verdict.startswith("does not hold")


def sources(m, seconds):
    common = {"M": m, "K": 4, "L": 3, "replicate": 0, "nll": 70.0}
    return [{**common, "strategy": "NVI", "seconds": 6.0}, {**common, "strategy": "EPVI_sample", "seconds": seconds}]


def test_a_gain_that_falls_as_shards_grow_is_not_what_the_paper_says():
    growing = judging.sources_faster([*sources(2, 3.0), *sources(5, 2.0), *sources(10, 1.0)])
    falling = judging.sources_faster([*sources(2, 1.0), *sources(5, 2.0), *sources(10, 3.0)])
    assert growing == ("2.0 (M = 2), 3.0 (M = 5), 6.0 (M = 10) times NVI's speed", "holds")
    assert falling.verdict.startswith("does not hold")


def test_a_claim_whose_table_is_missing_or_unfinished_is_not_measured(tmp_path):
    lines = claims.table(tmp_path, seed=0).splitlines()
    assert len(lines) == 2 + len(claims.CLAIMS)
    assert all("not measured: its rows" in line for line in lines[2:])
    (tmp_path / "figure4.csv").write_text("seed,M,K,strategy,product,nll\n0,2,4,EPVI_exact,0.1,0.3\n")
    assert claims.table(tmp_path, seed=0).count("not complete") == 3


def test_the_page_has_the_table_between_its_marks_and_all_else_as_it_was():
    page = f"above\n{publish.BEGIN}old\n{publish.END}below\n"
    once = publish.with_claims(page, "new\n")
    assert once == f"above\n{publish.BEGIN}new\n{publish.END}below\n"
    assert publish.with_claims(once, "new\n") == once
