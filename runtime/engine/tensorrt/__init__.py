"""Runs TensorRT engines behind the C++ scheduler. It imports TensorRT and CUDA only when an engine is opened."""
