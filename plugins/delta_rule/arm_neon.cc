// delta_rule for NEON.
#include "plugins/common/arm_neon.h"

#include "plugins/delta_rule/vector.h"

extern "C" void tw_delta_rule_neon(const tw_delta_rule_args* a) { delta_rule<Neon>(a); }
