"""Runs TensorRT engines behind the C++ scheduler. Imports neither TensorRT nor CUDA before an engine is opened."""
