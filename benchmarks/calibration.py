"""How often verdicts are right: simulated studies judged by the functions that judge real ones.

    python -m benchmarks.calibration                  # the tables of docs/statistics.md
    python -m benchmarks.calibration --studies 500    # a quick look

Every world is a way in which seeds scatter. In each, studies are drawn in which nothing differs,
half of the arms differ by 5 points, one arm does, all lie 1.6 points apart, and half differ by just
the smallest effect worth having.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from dml_core.analysis.estimates import ArmMeans, Contrasts, FloatArray, find_discoveries
from dml_core.analysis.recommendation import lead_confidence
from dml_core.analysis.verdicts import OPEN, SAME, decide, find_level, pair_weights
from dml_core.studies.added_seeds import AddedSeeds

ALPHA = 0.05
DEVIATION = 0.02
"""Standard deviation over seeds of an ordinary arm: two points."""
EFFECT = 0.05
SMALLEST_EFFECT = 0.01
SEEDS = (3, 5, 8)
ARMS = (3, 6, 16)
LOOKS = tuple(AddedSeeds().plan(start, most).sizes for start, most in ((3, 12), (5, 20)))
"""Seeds at each look, as `dml run --until-decided` plans them from three and from five seeds."""

Codes = npt.NDArray[np.int64]
Rule = Callable[[FloatArray], Codes]


def _spread(ratio: float) -> Callable[[np.random.Generator, int, int], FloatArray]:
    def draw(generator: np.random.Generator, studies: int, arms: int) -> FloatArray:
        return np.exp(generator.uniform(-0.5, 0.5, (studies, arms)) * np.log(ratio))

    return draw


def _noisy(share: float) -> Callable[[np.random.Generator, int, int], FloatArray]:
    def draw(generator: np.random.Generator, studies: int, arms: int) -> FloatArray:
        factors = np.ones((studies, arms))
        factors[:, : max(1, int(share * arms))] = 6.0
        return factors

    return draw


WORLDS: dict[str, Callable[[np.random.Generator, int, int], FloatArray]] = {
    "equal": lambda generator, studies, arms: np.ones((studies, arms)),
    "spread by 4": _spread(4.0),
    "spread by 16": _spread(16.0),
    "one arm 6 times as noisy": _noisy(0.0),
    "a family 6 times as noisy": _noisy(0.25),
    "heavy tails (t3)": lambda generator, studies, arms: np.ones((studies, arms)),
}
"""Standard deviations of the arms, in units of DEVIATION."""


def list_means(arms: int) -> dict[str, FloatArray]:
    """Returns the true means of each kind of study."""
    places = np.arange(arms)
    return {
        "nothing": np.zeros(arms),
        "half": np.where(places % 2 == 0, 0.0, EFFECT),
        "one": np.where(places == arms - 1, EFFECT, 0.0),
        "ramp": 0.016 * places,
        "margin": np.where(places % 2 == 0, 0.0, SMALLEST_EFFECT),
    }


SHARED = (0.0, 0.7)
"""Variance of the shift that a seed gives to all arms alike, in units of an ordinary arm's own. In
the runs of docs/findings.md it is 0 to 1, and 0.4 in the middle."""


def draw_noise(
    world: str,
    generator: np.random.Generator,
    studies: int,
    arms: int,
    seeds: int,
    shared: float = 0.0,
) -> FloatArray:
    """Returns (studies, arms, seeds) deviations from the true means."""
    shape = (studies, arms, seeds)
    if "t3" in world:
        noise = generator.standard_t(3, shape) / np.sqrt(3)
    else:
        noise = generator.standard_normal(shape)
    scaled: FloatArray = noise * WORLDS[world](generator, studies, arms)[:, :, None]
    shift = np.sqrt(shared) * generator.standard_normal((studies, 1, seeds))
    return DEVIATION * (scaled + shift)


def measure(samples: FloatArray) -> Contrasts:
    """Returns the differences of all pairs of arms of (studies, arms, seeds) scores."""
    return ArmMeans.of_table(samples).contrast(pair_weights(samples.shape[1]))


def judge(samples: FloatArray) -> Codes:
    """Returns the verdicts of all pairs, as a study gives them."""
    return decide(measure(samples), smallest_effect=SMALLEST_EFFECT, alpha=ALPHA)


def judge_paired_holm(samples: FloatArray) -> Codes:
    """Returns the verdicts of paired t-tests with Holm's correction, for comparison."""
    paired = np.einsum("ka,ras->rks", pair_weights(samples.shape[1]), samples)
    error = paired.std(axis=-1, ddof=1) / np.sqrt(samples.shape[-1])
    value = paired.mean(axis=-1)
    p_values = 2 * special.stdtr(samples.shape[-1] - 1, -np.abs(value) / error)
    order = np.argsort(p_values, axis=-1)
    steps = np.take_along_axis(p_values, order, -1) * np.arange(p_values.shape[-1], 0, -1)
    adjusted = np.empty_like(p_values)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(steps, axis=-1), -1)
    return np.where(adjusted <= ALPHA, np.sign(value).astype(np.int64), OPEN)


def judge_moderated(samples: FloatArray) -> Codes:
    """Returns the verdicts of variances shrunk to their geometric mean by one degree of freedom."""
    freedom = samples.shape[-1] - 1
    own = samples.var(axis=-1, ddof=1)
    prior = np.exp(np.log(own).mean(axis=-1, keepdims=True))
    variance = (prior + freedom * own) / (1 + freedom)
    weights = pair_weights(samples.shape[1])
    part = variance / samples.shape[-1]
    total = part @ np.abs(weights).T
    contrasts = Contrasts(
        samples.mean(axis=-1) @ weights.T,
        np.sqrt(total),
        total**2 * (1 + freedom) / (part**2 @ np.abs(weights).T),
    )
    found = find_discoveries(contrasts.p_differs, alpha=ALPHA)
    return np.where(found, np.sign(contrasts.value).astype(np.int64), OPEN)


@dataclass(frozen=True)
class Rates:
    """What a procedure does in one world with so many seeds and arms; all are shares."""

    any_false: float
    """Studies without differences in which a verdict says better or worse."""
    false_discoveries: float
    """Expected share of false verdicts, better, worse or no difference; the worst kind of study."""
    coverage: float
    """Pairs whose 95 % interval covers the true difference; the worst kind of study."""
    lead_coverage: float
    """Studies whose interval for the best arm's lead covers it; the worst kind of study."""
    power: float
    """Pairs that truly differ by 5 points and are found, where half of the arms do."""


def simulate(
    world: str,
    *,
    seeds: int,
    arms: int,
    studies: int,
    shared: float = 0.0,
    seed: int = 0,
    rule: Rule = judge,
) -> Rates:
    """Draws studies of every kind in one world and returns the rates of a procedure."""
    generator = np.random.default_rng([seed, seeds, arms, list(WORLDS).index(world)])
    noise = draw_noise(world, generator, studies, arms, seeds, shared)
    weights = pair_weights(arms)
    false, coverage, lead, power = {}, {}, {}, {}
    any_false = 0.0
    for kind, means in list_means(arms).items():
        samples = noise + means[None, :, None]
        codes, truth = rule(samples), means @ weights.T
        differs = np.abs(truth) > 1e-12
        wrong = (np.abs(codes) == 1) & (codes != np.sign(truth).astype(np.int64))
        # A difference of just the smallest effect is worth having.
        wrong |= (codes == SAME) & (np.abs(truth) >= SMALLEST_EFFECT - 1e-12)
        decided = codes != OPEN
        false[kind] = float((wrong.sum(-1) / np.maximum(decided.sum(-1), 1)).mean())
        found = measure(samples)
        low, high = found.interval()
        coverage[kind] = float(((low <= truth) & (truth <= high)).mean())
        lead[kind] = _cover_lead(samples, means, found)
        if kind == "nothing":
            any_false = float((np.abs(codes) == 1).any(-1).mean())
        if differs.any():
            power[kind] = float((codes == np.sign(truth).astype(np.int64))[:, differs].mean())
    return Rates(
        any_false,
        max(false.values()),
        min(coverage.values()),
        min(lead.values()),
        power["half"],
    )


def _cover_lead(samples: FloatArray, means: FloatArray, found: Contrasts) -> float:
    """Returns how often the interval of the best arm's lead covers its true lead."""
    studies, arms = samples.shape[:2]
    left, right = np.triu_indices(arms, 1)
    low, high = found.interval(confidence=lead_confidence(arms))
    lows, highs = np.full((studies, arms, arms), np.inf), np.full((studies, arms, arms), np.inf)
    lows[:, left, right], highs[:, left, right] = low, high
    lows[:, right, left], highs[:, right, left] = -high, -low
    best = samples.mean(axis=-1).argmax(axis=-1)
    each = np.arange(studies)
    others = np.where(np.eye(arms, dtype=bool), -np.inf, means[None, :]).max(axis=-1)
    lead = (means - others)[best]
    is_covered = (lows[each, best].min(-1) <= lead) & (lead <= highs[each, best].min(-1))
    return float(is_covered.mean())


def simulate_looks(
    world: str,
    *,
    arms: int,
    studies: int,
    sizes: Sequence[int],
    shared: float = 0.0,
    seed: int = 0,
) -> tuple[float, float]:
    """Returns the share of studies with a false verdict at their last look, and the seeds used.

    Nothing differs. After each look the arms that cannot be told from the best get the seeds of
    the next one, as `dml run --until-decided` does.
    """
    generator = np.random.default_rng([seed, arms, 99])
    samples = draw_noise(world, generator, studies, arms, sizes[-1], shared)
    alpha = find_level(len(sizes))
    left, right = np.triu_indices(arms, 1)
    counts = np.full((studies, arms), sizes[0])
    for place, _ in enumerate(sizes):
        used = np.arange(sizes[-1])[None, None, :] < counts[:, :, None]
        means = ArmMeans.of_table(np.where(used, samples, np.nan))
        codes = decide(
            means.contrast(pair_weights(arms)), smallest_effect=SMALLEST_EFFECT, alpha=alpha
        )
        if place + 1 == len(sizes):
            break
        best = means.mean.argmax(-1)[:, None]
        is_open = (codes == OPEN) & ((left[None, :] == best) | (right[None, :] == best))
        grows = np.zeros((studies, arms), dtype=bool)
        for row in range(len(left)):
            grows[:, left[row]] |= is_open[:, row]
            grows[:, right[row]] |= is_open[:, row]
        counts = np.where(grows, sizes[place + 1], counts)
    any_false = float((np.abs(codes) == 1).any(-1).mean())
    return any_false, float(counts.mean())


def render_tables(studies: int) -> str:
    """Returns the tables of docs/statistics.md, each cell the worst over arms and shared shifts."""
    lines = [
        "| world | seeds | any false verdict | false discoveries | coverage | coverage of the lead "
        "| power: 3, 6, 16 arms | paired t + Holm | moderated: any false |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for world in WORLDS:
        for seeds in SEEDS:
            cells = [(arms, shared) for arms in ARMS for shared in SHARED]
            size = {"seeds": seeds, "studies": studies}
            ours = {c: simulate(world, arms=c[0], shared=c[1], **size) for c in cells}
            paired, moderated = (
                {c: simulate(world, arms=c[0], shared=c[1], rule=rule, **size) for c in cells}
                for rule in (judge_paired_holm, judge_moderated)
            )
            shown = [
                f"{100 * max(each.any_false for each in ours.values()):.1f}",
                f"{100 * max(each.false_discoveries for each in ours.values()):.1f}",
                f"{100 * min(each.coverage for each in ours.values()):.1f}",
                f"{100 * min(each.lead_coverage for each in ours.values()):.1f}",
                _list_power(ours),
                _list_power(paired),
                f"{100 * max(each.any_false for each in moderated.values()):.1f}",
            ]
            lines.append(f"| {world} | {seeds} | {' | '.join(shown)} |")
    lines += [
        "",
        "| world | " + " | ".join(f"looks at {_list(sizes)} seeds" for sizes in LOOKS) + " |",
        "|---|" + "---:|" * len(LOOKS),
    ]
    for world in WORLDS:
        worst = [
            max(
                simulate_looks(world, arms=arms, shared=shared, studies=studies, sizes=sizes)[0]
                for arms in ARMS
                for shared in SHARED
            )
            for sizes in LOOKS
        ]
        lines.append(f"| {world} | {' | '.join(f'{100 * each:.1f}' for each in worst)} |")
    return "\n".join(lines) + "\n"


def _list(sizes: Sequence[int]) -> str:
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"


def _list_power(rates: Mapping[tuple[int, float], Rates]) -> str:
    """Returns the power with a shared shift, for each number of arms."""
    return ", ".join(f"{100 * rates[arms, SHARED[-1]].power:.0f}" for arms in ARMS)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=2000, help="studies for each cell")
    print(render_tables(parser.parse_args().studies), end="")


if __name__ == "__main__":
    main()
