"""Writes the verdict as sentences, on each statistic and on all together. They are confidential."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dpdist.core.table_cells import counted_and_named
from dpdist.quality.under_design import NOMINAL, Fixed
from dpdist.quality.verdict import FAR_NAMED, FAR_RECORDS, Grand, Verdict

NOT_ACCURATE = "not accurate"
NO_FAULT = "no fault found in the intervals"
NOTHING = "nothing could be judged"
SMALL = "errors too small"
PART = "no fault found in what could be judged"


def head_of(verdicts: Sequence[Verdict | None], names: Sequence[str]) -> str:
    """The verdict's first line: the most serious fault, and the statistics that have it."""
    judged = [(name, verdict) for name, verdict in zip(names, verdicts, strict=True) if verdict is not None]
    if not judged:
        return NOTHING
    faults = {
        "all records are off": [name for name, verdict in judged if verdict.off],
        "intervals hold too few direct figures": [name for name, verdict in judged if verdict.too_few],
        "cells are off to one side": [name for name, verdict in judged if verdict.one_sided],
        "a cell is too far off": [name for name, verdict in judged if verdict.far is not None],
    }
    sentences = [f"{fault} ({'; '.join(where)})" for fault, where in faults.items() if where]
    low = [name for name, verdict in judged if verdict.unclear]
    far = [f"{name}: {_sizes(verdict)}" for name, verdict in judged if verdict.far_off]
    off = [f"figures are far from direct ones, in direct SE ({'; '.join(far)})"] if far else []
    given = [(name, verdict.fixed) for name, verdict in judged if verdict.fixed is not None]
    fixed = [f"{name}: {_relative(figures)}" for name, figures in given if figures.inaccurate]
    off += [f"counts that the design fixes have large errors ({'; '.join(fixed)})"] if fixed else []
    ratios = "; ".join(f"{name}: {verdict.width:.2f}" for name, verdict in judged if verdict.small)
    small = f"{SMALL}: published errors are far below direct ones under the survey's design (ratio, {ratios})"
    small_too = [small] if ratios else []
    if sentences:
        stops = any(verdict.stops for _, verdict in judged)
        return f"{'do not publish' if stops else 'not as good as it says'}: {'; '.join(sentences + small_too + off)}"
    chance = [f"intervals hold fewer than 90 %, or miss all records, which may be chance ({'; '.join(low)})"] if low else []
    if ratios:
        return "; ".join(small_too + off + chance)
    if off:
        return f"{NOT_ACCURATE}: {'; '.join(off + chance)}"
    if low:
        return f"not clear: {chance[0]}"
    return NO_FAULT if len(judged) == len(verdicts) else PART


def _sizes(verdict: Verdict) -> str:
    largest = f", largest {verdict.largest_error:.1f}" if np.isfinite(verdict.largest_error) else ""
    return f"median {verdict.median_error:.1f}{largest}"


def _relative(fixed: Fixed) -> str:
    return f"off by up to {fixed.error:.0%}, intervals up to ±{fixed.reach:.0%}".replace("%", " %")


def bias_line(name: str, grand: Grand) -> str:
    """A line on the figure of all records: published, direct, and their difference in percent and in standard errors."""
    off = f"{grand.relative:+.1%}".replace("-", "−").replace("%", " %") if np.isfinite(grand.relative) else ""
    sizes = [f"{abs(grand.in_published):.1f} published SE"]
    sizes += [f"{abs(grand.in_noise):.1f} SE of the noise alone"] if np.isfinite(grand.in_noise) else []
    return f"{name}, all records: {large(grand.published)}, direct {large(grand.direct)}, {off}, {', '.join(sizes)}"


def bias_lines(verdicts: Iterable[tuple[str, Verdict | None]]) -> Iterator[str]:
    """Yields a line for each statistic that has a figure of all records."""
    for name, verdict in verdicts:
        if verdict is not None and verdict.grand is not None:
            yield bias_line(name, verdict.grand)


def in_words(name: str, verdict: Verdict) -> str:
    """The verdict on one statistic in sentences."""
    sentences = [f"{name}: 90 % intervals hold {verdict.held:.2f} of {verdict.cells} direct estimates."]
    if np.isfinite(verdict.width):
        sentences.append(f"The median published standard error is {verdict.width:.2f} times the direct one.")
    if verdict.small:
        sentences.append(
            "Published errors leave out a part of the survey's design. "
            "State a public design effect (survey.design_effect), or a larger one."
        )
    if verdict.far_off:
        largest = f" and {verdict.largest_error:.1f} at most" if np.isfinite(verdict.largest_error) else ""
        by = f"{verdict.median_error:.1f} in the median{largest}"
        sentences.append(f"Figures are far from direct ones, by {by}, in direct standard errors.")
    if verdict.beyond:
        sentences.append(f"More than {FAR_NAMED:g} direct standard errors off: {counted_and_named(verdict.beyond)}.")
    if verdict.fixed is not None:
        sentences += list(_of_fixed(verdict.fixed))
    if verdict.off:
        sentences.append("The figure of all records is further from the direct one than chance explains: it is biased.")
    if verdict.too_few:
        sentences.append("Intervals of base cells hold fewer than 90 %, and chance does not explain it.")
    if verdict.one_sided:
        share = max(verdict.above, 1.0 - verdict.above)
        side = "above" if verdict.above > 0.5 else "below"
        sentences.append(
            f"{100 * share:.0f} % of base cells are {side} their direct estimates, by {abs(verdict.lean):.1f} published SE."
        )
    if verdict.far is not None:
        sentences.append(f"{verdict.far} is further off than chance allows.")
    if verdict.unclear:
        low = (
            "That is fewer than 90 %."
            if verdict.held < NOMINAL
            else "The interval of all records misses the direct figure."
        )
        sentences.append(f"{low} It may be chance.")
    if verdict.fails:
        sentences.append("Do not publish." if verdict.stops else "State wider intervals, or the bias.")
    return " ".join(sentences)


def _of_fixed(fixed: Fixed) -> Iterator[str]:
    """Yields sentences on counts that the design fixes, and what to do about them."""
    number = "1 count has" if fixed.cells == 1 else f"{fixed.cells} counts have"
    yield f"{number} no direct error: the design fixes such counts."
    if np.isfinite(fixed.error):
        yield f"In cells of {FAR_RECORDS} records or more such counts are {_relative(fixed)}."
    yield "If such totals are public, state them (job key rake): then they are published without error."


def large(value: float) -> str:
    """Formats a figure briefly: 59.1 M, 84,300, 0.412."""
    for unit, times in (("bn", 1e9), ("M", 1e6)):
        if abs(value) >= times:
            digits = f"{value / times:#.3g}".removesuffix(".")
            return f"{digits if abs(value) < 999.5 * times else f'{value / times:,.0f}'} {unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
