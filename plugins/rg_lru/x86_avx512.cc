// rg_lru for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/rg_lru/vector.h"

extern "C" void tw_rg_lru_avx512(const tw_rg_lru_args* a) { rg_lru<Avx512>(a); }
