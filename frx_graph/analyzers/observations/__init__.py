"""Match layout work seen in files of a run with findings."""
