// rg_lru for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/rg_lru/vector.h"

extern "C" void tw_rg_lru_neon(const tw_rg_lru_args* a) { rg_lru<Neon>(a); }
