"""For the methodologist, confidential, by `release` and `cli`: published figures beside direct ones and comparators."""
