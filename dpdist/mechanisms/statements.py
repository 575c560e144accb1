"""What mechanisms that add noise say of themselves in statements, by name. It imports no code that sees a record."""

from dpdist.job import Job
from dpdist.mechanisms.laplace_cells.statement import WORDS as CELLS
from dpdist.mechanisms.laplace_tables.statement import WORDS as TABLES
from dpdist.mechanisms.modips.statement import WORDS as MODIPS
from dpdist.mechanisms.partitions.statement import WORDS as PARTITIONS
from dpdist.mechanisms.perturbed_histogram.statement import WORDS as HISTOGRAM
from dpdist.mechanisms.reference_tables.statement import WORDS as REFERENCE
from dpdist.mechanisms.sanitized_lognormal.statement import WORDS as SANITIZED
from dpdist.mechanisms.weight_regularisation.statement import WORDS as REGULARISED
from dpdist.mechanisms.weighted_marginals.statement import WORDS as MARGINALS
from dpdist.mechanisms.words import Words

WORDS: dict[str, Words] = {
    "perturbed_histogram": HISTOGRAM,
    "laplace": TABLES,
    "laplace_composed": TABLES,
    "laplace_strict": CELLS,
    "weight_regularisation": REGULARISED,
    "reference_tables": REFERENCE,
    "sanitized_statistics": SANITIZED,
    "modips": MODIPS,
    "flat_laplace": PARTITIONS,
    "universal_histogram": PARTITIONS,
    "steps": PARTITIONS,
    "weighted_marginals": MARGINALS,
}
LIKELIHOOD = Words()
"""Of mechanisms that fit a likelihood."""


def words_of(job: Job) -> Words:
    """The words of a job's mechanism."""
    return WORDS.get(job.mechanism.name, LIKELIHOOD)
