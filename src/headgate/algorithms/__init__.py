"""Each algorithm as a pure transition on integers: no clock, no lock, no key, no I/O."""
