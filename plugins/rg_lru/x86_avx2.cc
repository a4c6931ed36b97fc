// rg_lru for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/rg_lru/vector.h"

extern "C" void tw_rg_lru_avx2(const tw_rg_lru_args* a) { rg_lru<Avx2>(a); }
