// delta_rule for AVX2.
#include "plugins/common/x86_avx2.h"

#include "plugins/delta_rule/vector.h"

extern "C" void tw_delta_rule_avx2(const tw_delta_rule_args* a) { delta_rule<Avx2>(a); }
