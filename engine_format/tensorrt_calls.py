"""Lists what is used of TensorRT's Python bindings, and what of it TensorRT for RTX alone has.

The builder, the plugins and the runtime use no other names; tests/builder/tensorrt/test_calls.py compares. With this
list `tensorwright doctor --report` tells what an installed release lacks.
"""

from __future__ import annotations

from typing import Any

CALLS: dict[str, tuple[str, ...]] = {
    "Builder": (
        "create_network",
        "create_builder_config",
        "create_optimization_profile",
        "build_serialized_network",
    ),
    "IBuilderConfig": (
        "profiling_verbosity",
        "set_preview_feature",
        "progress_monitor",
        "add_optimization_profile",
    ),
    "IOptimizationProfile": ("set_shape",),
    "OnnxParser": ("parse_from_file", "num_errors", "get_error"),
    "ParserError": ("node_name", "node_operator", "desc"),
    "Runtime": ("deserialize_cuda_engine",),
    "ICudaEngine": (
        "num_io_tensors",
        "num_optimization_profiles",
        "get_tensor_name",
        "get_tensor_dtype",
        "get_tensor_shape",
        "get_aliased_input_tensor",
        "device_memory_size_v2",
        "get_device_memory_size_for_profile_v2",
        "create_execution_context",
    ),
    "IExecutionContext": (
        "set_optimization_profile_async",
        "set_device_memory",
        "set_input_shape",
        "set_tensor_address",
        "execute_async_v3",
    ),
    "IPluginRegistry": ("get_creator", "register_creator"),
    "ProfilingVerbosity": ("DETAILED",),
    "PreviewFeature": ("ALIASED_PLUGIN_IO_10_03",),
    "ExecutionContextAllocationStrategy": ("USER_MANAGED",),
    "TensorFormat": ("LINEAR",),
    "TensorRTPhase": (),
    "DataType": ("FLOAT", "HALF", "BF16", "INT32", "INT8"),
    "ILogger": ("INTERNAL_ERROR", "ERROR"),
    "IProgressMonitor": (),
    "IPluginV3": (),
    "IPluginV3OneCore": (),
    "IPluginV3OneBuildV2": (),
    "IPluginV3OneRuntime": (),
    "IPluginCreatorV3One": (),
    "PluginField": (),
    "PluginFieldCollection": (),
    "PluginFieldType": (),
    "DimsExprs": (),
    "NetworkDefinitionCreationFlag": (),
}
"""What both packages must have: names of the module's classes, and of their members."""

RTX_CALLS: dict[str, tuple[str, ...]] = {
    "IBuilderConfig": ("set_flag", "num_compute_capabilities", "set_compute_capability"),
    "BuilderFlag": ("REQUIRE_USER_ALLOCATION",),
    "ComputeCapability": (),
    "ICudaEngine": ("create_runtime_config",),
    "IRuntimeConfig": (
        "set_execution_context_allocation_strategy",
        "dynamic_shapes_kernel_specialization_strategy",
        "cuda_graph_strategy",
        "create_runtime_cache",
        "set_runtime_cache",
    ),
    "IRuntimeCache": ("serialize", "deserialize"),
    "IExecutionContext": ("is_stream_capturable",),
    "DynamicShapesKernelSpecializationStrategy": ("LAZY", "EAGER", "NONE"),
    "CudaGraphStrategy": ("DISABLED", "WHOLE_GRAPH_CAPTURE"),
}
"""What is used of TensorRT for RTX alone, in the same form."""


def missing_calls(trt: Any, flavour: str) -> list[str]:
    """Returns the names that the installed package of a target lacks: "ICudaEngine.create_runtime_config", ...

    trt: its module. flavour: "tensorrt" or "tensorrt-rtx".
    """
    tables = (CALLS, RTX_CALLS) if flavour == "tensorrt-rtx" else (CALLS,)
    missing = []
    for owner, names in (pair for table in tables for pair in table.items()):
        kind = getattr(trt, owner, None)
        if kind is None:
            missing.append(owner)
        else:
            missing += [f"{owner}.{name}" for name in names if not hasattr(kind, name)]
    return missing
