"""Starts the ranks of a parallel engine: processes of this machine, or of many under MPI."""
