"""Runs engines of target onnx, the portable ONNX form of a model, with ONNX Runtime behind the C++ scheduler."""
