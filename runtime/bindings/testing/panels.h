// Packs and unpacks panels of float weights, for tests and benchmarks. Builds pack in plugins/packing.py.
#ifndef TENSORWRIGHT_RUNTIME_BINDINGS_TESTING_PANELS_H_
#define TENSORWRIGHT_RUNTIME_BINDINGS_TESTING_PANELS_H_

#include "plugins/matmul/pack.h"

namespace tensorwright {

// Packs into panels_of(rows) panels of `dtype` (TW_F32 or TW_BF16, converted by round-to-nearest-even).
void pack_panels(int dtype, const PackSource& source, void* panels);

// The layout of TW_EPILOGUE_GATED: panel 2i holds rows 16i.. of gate, panel 2i + 1 the same rows of up.
void pack_gated_panels(int dtype, const PackSource& gate, const PackSource& up, void* panels);

// The inverse of pack_panels: rows [rows, k] of the same dtype, contiguous.
void unpack_panels(int dtype, const void* panels, int64_t rows, int64_t k, void* out);

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_BINDINGS_TESTING_PANELS_H_
