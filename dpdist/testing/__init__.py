"""Checks for authors of plug-ins, in their tests and ours; a failed check says what is wrong."""

from dpdist.testing.families import check_family
from dpdist.testing.mechanisms import check_mechanism
from dpdist.testing.readers import check_reader
from dpdist.testing.statistics import check_statistic
from dpdist.testing.weight_rules import check_weight_rule

__all__ = ["check_family", "check_mechanism", "check_reader", "check_statistic", "check_weight_rule"]
