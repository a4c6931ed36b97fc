// delta_rule for AVX-512.
#include "plugins/common/x86_avx512.h"

#include "plugins/delta_rule/vector.h"

extern "C" void tw_delta_rule_avx512(const tw_delta_rule_args* a) { delta_rule<Avx512>(a); }
