"""Computes the exact parts of a release's budget: for sets, tables, gates, histograms and noisy sample counts."""

from __future__ import annotations

from fractions import Fraction

from dpdist.job.keys import JobKeys
from dpdist.job.zcdp import rho_of


class BudgetShares(JobKeys):
    """A job's keys, together with the parts of its budget."""

    @property
    def epsilon_per_set(self) -> Fraction:
        return self._epsilon_of_release / self.synthetic_sets

    @property
    def epsilon_of_tables(self) -> Fraction:
        """ε of the tables: what gates, noisy sample counts and the current file's histograms leave."""
        own = self.reference.paid if self.reference is not None else None
        return self._epsilon_of_release - (own.epsilon if own is not None else 0)

    @property
    def _epsilon_of_release(self) -> Fraction:
        """ε of the release: what gates and noisy sample counts leave."""
        return self.budget.epsilon - (self.accept.epsilon if self.accept is not None else 0) - self.epsilon_of_frame

    @property
    def epsilon_of_frame(self) -> Fraction:
        """ε of noisy sample counts; 0 where counts are public."""
        return self.predictors.protect.epsilon if self.predictors is not None else Fraction(0)

    @property
    def rho_of_frame(self) -> Fraction:
        """ρ of noisy sample counts under Gaussian noise: the ρ that their ε would give alone, at the release's δ."""
        if self.predictors is None:
            return Fraction(0)
        assert self.budget.delta is not None
        return rho_of(self.epsilon_of_frame, self.budget.delta)

    @property
    def rho_of_tables(self) -> Fraction:
        """ρ of the tables: what noisy sample counts leave."""
        return self.budget.concentrated - self.rho_of_frame
