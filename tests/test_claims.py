"""The table of claims: judged by numbers, silent about what was not measured."""

import claims
import publish
import pytest


def timed(strategy, seconds, **more):
    return {"strategy": strategy, "M": 20, "K": 4, "seconds": seconds, "local": seconds, "wall": seconds, **more}


@pytest.mark.parametrize(("seconds", "verdict"), [(1.0, "holds"), (3.0, "does not hold, because")])
def test_the_claim_of_time_is_judged_by_the_ratio(seconds, verdict):
    rows = [timed("NVI", 12.0), timed("EPVI_sample", seconds), timed("EPVI_refined", 2.0)]
    found = claims.faster_with_shards(rows)
    assert found.verdict.startswith(verdict)
    assert f"{12 / seconds:.1f} times less" in found.measured


def product(strategy, m, seconds, nll, k=4):
    return {"strategy": strategy, "M": m, "K": k, "product": seconds, "nll": nll, "components": k**m}


def products(late):
    """The exact product of K = 4 overtakes the chain at M = 6, or with `late` at M = 8."""
    rows = []
    for m in (4, 6, 8):
        slow = m >= (8 if late else 6)
        for kind in ("", ", plain loops"):
            rows.append(product(f"EPVI_exact{kind}", m, 5.0 if slow else 0.5, 0.3))
            rows.append(product(f"EPVI_sample{kind}", m, 1.0, 0.3))
        rows.append(product("EPVI_subset", m, 2.0, 0.3 + 1e-5))
        rows.append(product("EPVI_anchored", m, 2.0, 0.3))
    return rows


def test_where_the_exact_product_is_overtaken_is_found():
    early, late = (claims.exact_explodes(products(late)) for late in (False, True))
    assert "chain from M = 6, K = 4 on" in early.measured
    assert early.verdict == "holds"
    assert "chain from M = 8" in late.measured
    assert late.verdict == "holds better: the same, later"


def test_likelihoods_are_compared_size_by_size():
    assert claims.same_as_exact(products(late=False)).verdict == "holds"
    assert claims.sample_beats_subset(products(late=False)).verdict == "holds"
    spoiled = [{**row, "nll": 0.4} if row["strategy"] == "EPVI_sample" else row for row in products(late=False)]
    assert claims.same_as_exact(spoiled).verdict.startswith("does not hold")
    assert claims.sample_beats_subset(spoiled).verdict.startswith("does not hold")


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
