"""Splits a release's budget, exactly: the parts of sets, tables, gates, histograms and noisy frame."""

from __future__ import annotations

from fractions import Fraction

from dpdist.job.keys import JobKeys
from dpdist.job.zcdp import rho_of


class BudgetShares(JobKeys):
    """A job's keys, with the parts of its budget."""

    @property
    def epsilon_per_set(self) -> Fraction:
        return self._epsilon_of_release / self.synthetic_sets

    @property
    def epsilon_of_tables(self) -> Fraction:
        """Returns the part of the release's budget after its gates and its reference's histograms."""
        own = self.reference.paid if self.reference is not None else None
        return self._epsilon_of_release - (own.epsilon if own is not None else 0)

    @property
    def _epsilon_of_release(self) -> Fraction:
        """Returns the part of the budget after the gates and the noisy frame."""
        return self.budget.epsilon - (self.accept.epsilon if self.accept is not None else 0) - self.epsilon_of_frame

    @property
    def epsilon_of_frame(self) -> Fraction:
        """Returns the ε of noisy sample counts; 0 where counts are public."""
        return self.predictors.protect.epsilon if self.predictors is not None else Fraction(0)

    @property
    def rho_of_frame(self) -> Fraction:
        """Returns the ρ of noisy sample counts under Gaussian noise: what their ε alone would buy at the release's δ."""
        if self.predictors is None:
            return Fraction(0)
        assert self.budget.delta is not None
        return rho_of(self.epsilon_of_frame, self.budget.delta)

    @property
    def rho_of_tables(self) -> Fraction:
        """Returns the release's ρ after the noisy frame."""
        return self.budget.concentrated - self.rho_of_frame
