"""A configuration brought to life on one rank: what `train`, `verify` and `profile` share."""
