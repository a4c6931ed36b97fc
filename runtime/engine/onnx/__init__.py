"""Target onnx: the portable ONNX form of a model, run by ONNX Runtime behind the C++ scheduler."""
