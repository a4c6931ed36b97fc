"""Exports TritonPythonModel under the stable name from which Triton's Python backend loads it.

Every repository that `tensorwright triton-repo` writes imports TritonPythonModel from here. Such repositories live
longer than the folders of this project, so this name never moves. For repositories that were written before this file
there is `runtime/triton/model.py`.
"""

from tensorwright.runtime.serving.triton.model import TritonPythonModel as TritonPythonModel
