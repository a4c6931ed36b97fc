// matmul's AMX kernel with a model of the tiles in place of the processor's, for amx_test.cc.
#include "tests/support/amx_by_model.h"

#define tw_matmul_bf16_amx modelled_bf16
#include "plugins/matmul/x86_amx.cc"

extern "C" long modelled_bf16_products() { return amx_model::unit.products; }
extern "C" bool modelled_bf16_tiles() { return amx_model::unit.configured; }
