"""The score model: weight and outcome by their scores under a reference's distributions."""
