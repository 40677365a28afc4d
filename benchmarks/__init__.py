"""Measurements as ratios in one run, against peers, a limit or a floor. `make bench` runs them all."""
