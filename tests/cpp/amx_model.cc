// quantized_matmul's AMX kernels with a model of the tiles in place of the processor's, for amx_test.cc.
#include "tests/support/amx_by_model.h"

#define TW_AMX_KERNEL(kind) modelled_##kind
#include "plugins/quantized_matmul/x86_amx.cc"

// Returns the kernel of a dtype, or NULL.
extern "C" tw_quantized_matmul_fn modelled_quantized(int dtype) {
#define TW_OF(of, kind, name) \
  if (dtype == of) return TW_AMX_KERNEL(kind);
  TW_FOR_EACH_IN_TILES(TW_OF)
#undef TW_OF
  return nullptr;
}
extern "C" long modelled_products() { return amx_model::unit.products; }
extern "C" bool modelled_tiles() { return amx_model::unit.configured; }
