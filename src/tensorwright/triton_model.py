"""The stable name of the model that Triton's Python backend loads.

Every repository that `tensorwright triton-repo` wrote imports TritonPythonModel from here. Such repositories live
longer than the folders of this project, so this name never moves.
"""

from tensorwright.runtime.serving.triton.model import TritonPythonModel as TritonPythonModel
