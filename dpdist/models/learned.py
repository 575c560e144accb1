"""What a model learned from the reference, by the parts that a caller may need."""

from __future__ import annotations

from dpdist.estimation.donors import Donors
from dpdist.models.copula.reference_summary import Facts
from dpdist.models.protocol import StratumModel, supports


def facts_of(learned: object) -> Facts | None:
    """The distributions of a score model, if the reference fixed any."""
    return getattr(learned, "facts", None)


def donors_of(learned: object) -> Donors | None:
    """Donors for synthetic records, if the reference has any."""
    return getattr(learned, "donors", None)


def power_of(learned: object) -> float | None:
    """The power of a centred likelihood, if the reference fixed it."""
    return getattr(learned, "power", None)


def fixed_model(model: StratumModel, learned: object) -> StratumModel:
    """The model with the distributions that the reference fixed, if it uses any."""
    facts = facts_of(learned)
    return model.within(facts) if supports(model, "weights_corrected") and facts is not None else model
