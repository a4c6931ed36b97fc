"""Reports for `tensorwright doctor` what this machine has, and whether an engine can run on it."""
