"""Checks for authors of plug-ins, which dpdist's members pass as well. A failed check says what is wrong, with a remedy."""

from dpdist.testing.families import check_family
from dpdist.testing.mechanisms import check_mechanism
from dpdist.testing.readers import check_reader
from dpdist.testing.weight_rules import check_weight_rule

__all__ = ["check_family", "check_mechanism", "check_reader", "check_weight_rule"]
