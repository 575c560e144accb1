"""Writes a rehearsal's page: the recommendation, every mechanism's errors and guarantee, and the failed trials."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from dpdist.publish.writers.page import environment
from dpdist.studies.figures import inline
from dpdist.studies.rehearsal_candidates import Refused
from dpdist.studies.rehearsal_trials import RULE, Rehearsal, Trial, advice

LEAST_DRAWN = 0.01
"""Smallest error that is drawn, because the scale is logarithmic; smaller ones are drawn here."""


def page(made: Rehearsal) -> str:
    """One HTML document that loads nothing."""
    template = environment("dpdist.studies").get_template("rehearsal.html")
    rows = [(trial, row) for trial in made.trials for row in trial.by_statistic.to_dict("records")]
    confirmed = [] if made.confirmed is None else made.confirmed.by_statistic.to_dict("records")
    drawn = Markup(inline(figure(made.trials), "errors", "Errors by mechanism"))
    return template.render(
        made=made,
        best=made.best,
        rows=rows,
        confirmed=confirmed,
        rule=RULE,
        figure=drawn,
        refused=by_reason(made.refused),
        advice=advice(made),
        shown=shown,
    )


def shown(coverage: float) -> str:
    return "–" if np.isnan(coverage) else f"{coverage:.2f}"


def by_reason(refused: Sequence[Refused]) -> dict[str, str]:
    """Labels of mechanisms that were not run, by reason."""
    reasons = dict[str, list[str]]()
    for refusal in refused:
        reasons.setdefault(refusal.reason.replace(f"'{refusal.label.partition(' ')[0]}'", "the mechanism"), []).append(
            refusal.label
        )
    return {reason: ", ".join(labels) for reason, labels in reasons.items()}


def figure(trials: list[Trial]) -> str:
    """Boxes of |error| over cells, in direct standard errors, by mechanism."""
    sizes = [trial.cells["error_in_direct_se"] for trial in trials]
    shown = [errors[np.isfinite(errors)].clip(lower=LEAST_DRAWN) for errors in sizes]
    figure = Figure(figsize=(7.5, 0.8 + 0.4 * len(trials)), layout="constrained")
    axes = figure.subplots()
    axes.boxplot(shown, orientation="horizontal", tick_labels=[trial.candidate.label for trial in trials], whis=(0, 100))
    axes.axvline(1.0, color="#0b5394", linewidth=1.0)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("|error| in direct standard errors, all cells and statistics")
    held = io.StringIO()
    figure.savefig(held, format="svg", metadata={"Date": None})
    return held.getvalue()
