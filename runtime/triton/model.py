"""Keeps a name that Triton's repositories of earlier versions import; today's name is `tensorwright.triton_model`."""

from tensorwright.triton_model import TritonPythonModel as TritonPythonModel
