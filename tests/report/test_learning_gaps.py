"""Gaps to the baseline, and the power laws fitted to them."""

from __future__ import annotations

from linformer_kit.report.learning_gaps import gap_table

UPDATES = (100, 200, 400, 800)


def entry(losses: list[float | None], seed: int = 0) -> dict:
    return {"seed": seed, "curve": [[0, 9.0], *([update, loss] for update, loss in zip(UPDATES, losses, strict=True))]}


def lines(**curves: list[float]) -> dict[str, list[dict]]:
    return {name.replace("_", " "): [entry(losses)] for name, losses in curves.items()}


def test_gaps_at_quarters_and_power_laws():
    base = [5.0, 4.0, 3.0, 2.0]
    behind = {
        k: [loss + 8 * update**-0.5 * k**-0.25 for loss, update in zip(base, UPDATES, strict=True)] for k in (4, 16, 64)
    }
    given = lines(full=base, k_4=behind[4], k_16=behind[16], k_64=behind[64])
    shown = gap_table(given, "full", {"k 4": 4, "k 16": 16, "k 64": 64})
    assert (
        shown[0] == "| line | 100 updates | 200 updates | 400 updates | 800 updates | fit without the first quarter |"
    )
    assert shown[2] == "| k 4 | +0.566 | +0.400 | +0.283 | +0.200 | updates^-0.50 within 0 % |"
    assert shown[-1] == "After all updates the gap changes as k^-0.25 within 0 %, from k 4 to 64."


def test_the_exponent_by_updates_is_made_without_the_first_quarter():
    updates = [100 * number for number in range(1, 9)]
    curves = {"full": [[update, 1.0] for update in updates]}
    curves["ours"] = [[update, 1.0 + (7.0 if update < 300 else 300 * update**-1.5)] for update in updates]
    given = {name: [{"seed": 0, "curve": curve}] for name, curve in curves.items()}
    assert gap_table(given, "full", {})[2].endswith("| updates^-1.50 within 0 % |")


def test_the_largest_deviation_from_a_fit_is_shown():
    """Of 1, 2 and 1 at k 1, 2 and 4: the fit is their geometric mean, 2^(1/3)."""
    gaps = {1: 1.0, 2: 2.0, 4: 1.0}
    given = {f"k {k}": [{"seed": 0, "curve": [[1, 1.0 + gap]]}] for k, gap in gaps.items()}
    shown = gap_table({"full": [{"seed": 0, "curve": [[1, 1.0]]}], **given}, "full", {f"k {k}": k for k in gaps})
    assert shown[-1] == "After all updates the gap changes as k^0.00 within 59 %, from k 1 to 4."


def test_seeds_are_paired_and_averaged_and_what_is_not_comparable_is_left_out():
    ours = [entry([6, 5, 4, 3], seed=1), entry([8, 7, None, 5], seed=2), entry([1, 1, 1, 1], seed=4)]
    given = {"full": [entry([5, 4, 3, 2], seed=seed) for seed in (1, 2)] + [entry([9, 9, 9, 9], seed=3)], "ours": ours}
    assert gap_table(given, "full", {"ours": 4})[2] == "| ours | +2.000 | +2.000 | +2.000 |  |"  # two points are no fit
    assert gap_table({"ours": given["ours"]}, "full", {}) == gap_table({"full": given["full"]}, "full", {}) == []
    ahead = gap_table(lines(full=[5, 4, 3, 2], ours=[4, 3, 2, 1]), "full", {"ours": 4})
    assert ahead[2] == "| ours | -1.000 | -1.000 | -1.000 | -1.000 |  |"
