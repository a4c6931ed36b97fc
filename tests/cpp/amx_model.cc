// The AMX kernels with a model of the tiles in place of the processor's, for amx_test.cc.
#include "tests/support/amx_by_model.h"

#define tw_quantized_matmul_i8_amx modelled_i8
#define tw_quantized_matmul_w4a8_amx modelled_w4a8
#include "plugins/quantized_matmul/x86_amx.cc"

extern "C" long modelled_products() { return amx_model::unit.products; }
extern "C" bool modelled_tiles() { return amx_model::unit.configured; }
