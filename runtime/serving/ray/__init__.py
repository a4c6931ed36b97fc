"""Serves engines as replicas on Ray Serve. Importing this package says how Ray is to behave, before Ray is imported."""

import os

# Ray would start a cluster of its own in a thread that still asks for something when the connection has ended.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
