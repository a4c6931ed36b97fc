// The quantized matmul kernels, best first.
#include "plugins/quantized_matmul/kernels.h"

#include <string>

#include "runtime/core/base/error.h"

// The next macros declare the kernels of one kind of weights, and list them, best first.
#define TW_DECLARE_KERNELS(dtype, kind, name)                                    \
  void tw_quantized_matmul_##kind##_scalar(const tw_quantized_matmul_args*);     \
  void tw_quantized_matmul_##kind##_avx2(const tw_quantized_matmul_args*);       \
  void tw_quantized_matmul_##kind##_avxvnni(const tw_quantized_matmul_args*);    \
  void tw_quantized_matmul_##kind##_avx512vnni(const tw_quantized_matmul_args*); \
  void tw_quantized_matmul_##kind##_neon(const tw_quantized_matmul_args*);       \
  void tw_quantized_matmul_##kind##_neondot(const tw_quantized_matmul_args*);
#define TW_DECLARE_MATRICES(dtype, kind, name) \
  void tw_quantized_matmul_##kind##_neoni8mm(const tw_quantized_matmul_args*);
#define TW_DECLARE_TILES(dtype, kind, name) \
  void tw_quantized_matmul_##kind##_amx(const tw_quantized_matmul_args*);
#define TW_KERNEL(kind, set, isa, extra) \
  {"quantized_matmul_" #kind "_" #set, Isa::isa, Extra::extra, tw_quantized_matmul_##kind##_##set}
#define TW_TILES(kind) TW_ON_X86(TW_KERNEL(kind, amx, avx512, amx_int8))
#define TW_MATRICES(kind) TW_ON_ARM(TW_KERNEL(kind, neoni8mm, neon, neon_i8mm))
#define TW_LIST_KERNELS(kind)                                                                    \
  TW_ON_X86(TW_KERNEL(kind, avx512vnni, avx512, vnni), TW_KERNEL(kind, avxvnni, avx2, avx_vnni), \
            TW_KERNEL(kind, avx2, avx2, none))                                                   \
  TW_ON_ARM(TW_KERNEL(kind, neondot, neon, neon_dotprod), TW_KERNEL(kind, neon, neon, none))     \
  TW_KERNEL(kind, scalar, scalar, none)

extern "C" {
TW_FOR_EACH_QUANTIZED(TW_DECLARE_KERNELS)
TW_FOR_EACH_IN_TILES(TW_DECLARE_TILES)
TW_FOR_EACH_DENSE(TW_DECLARE_MATRICES)
void tw_quantize_weights_scalar(const tw_quantize_weights_args*);
void tw_quantize_weights_avx2(const tw_quantize_weights_args*);
void tw_quantize_weights_avx512(const tw_quantize_weights_args*);
void tw_quantize_weights_neon(const tw_quantize_weights_args*);
void tw_quantize_rows_scalar(const tw_quantize_rows_args*);
void tw_quantize_rows_avx2(const tw_quantize_rows_args*);
void tw_quantize_rows_avx512(const tw_quantize_rows_args*);
void tw_quantize_rows_neon(const tw_quantize_rows_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_quantized_matmul_fn>> quantized_matmul_kernels(int dtype) {
// The table of a dtype; `better` lists the entries that are tried before those that every dtype has.
#define TW_TABLE(dtype, kind, better)                                                               \
  case dtype: {                                                                                     \
    static constexpr KernelEntry<tw_quantized_matmul_fn> kTable[] = {better TW_LIST_KERNELS(kind)}; \
    return kTable;                                                                                  \
  }
#define TW_IN_TILES(dtype, kind, name) TW_TABLE(dtype, kind, TW_TILES(kind) TW_MATRICES(kind))
#define TW_IN_REGISTERS(dtype, kind, name) TW_TABLE(dtype, kind, TW_MATRICES(kind))
#define TW_SPARSE(dtype, kind, name) TW_TABLE(dtype, kind, )
  switch (dtype) {
    TW_FOR_EACH_IN_TILES(TW_IN_TILES)
    TW_FOR_EACH_IN_REGISTERS(TW_IN_REGISTERS)
    TW_FOR_EACH_SPARSE(TW_SPARSE)
    default:
      throw Error("EngineError", "no weights have dtype " + std::to_string(dtype));
  }
#undef TW_IN_TILES
#undef TW_IN_REGISTERS
#undef TW_SPARSE
#undef TW_TABLE
}

std::span<const KernelEntry<tw_quantize_rows_fn>> quantize_rows_kernels() {
  static constexpr KernelEntry<tw_quantize_rows_fn> kTable[] = {
      TW_ON_X86({"quantize_rows_avx512", Isa::avx512, Extra::none, tw_quantize_rows_avx512},
                {"quantize_rows_avx2", Isa::avx2, Extra::none, tw_quantize_rows_avx2})  //
      TW_ON_ARM({"quantize_rows_neon", Isa::neon, Extra::none, tw_quantize_rows_neon})  //
      {"quantize_rows_scalar", Isa::scalar, Extra::none, tw_quantize_rows_scalar},
  };
  return kTable;
}

std::span<const KernelEntry<tw_quantize_weights_fn>> quantize_weights_kernels() {
  static constexpr KernelEntry<tw_quantize_weights_fn> kTable[] = {
      TW_ON_X86({"quantize_weights_avx512", Isa::avx512, Extra::none, tw_quantize_weights_avx512},
                {"quantize_weights_avx2", Isa::avx2, Extra::none, tw_quantize_weights_avx2})  //
      TW_ON_ARM({"quantize_weights_neon", Isa::neon, Extra::none, tw_quantize_weights_neon})  //
      {"quantize_weights_scalar", Isa::scalar, Extra::none, tw_quantize_weights_scalar},
  };
  return kTable;
}

namespace {

#define TW_FAMILY(dtype, kind, name) \
  {"quantized_matmul " name, [] { return quantized_matmul_kernels(dtype); }},

const RegisteredKernels registered_quantized_matmul(
    /*place=*/20,
    {TW_FOR_EACH_QUANTIZED(TW_FAMILY)  //
     {"quantize_rows", [] { return quantize_rows_kernels(); }},
     {"quantize_weights", [] { return quantize_weights_kernels(); }}});

}  // namespace

}  // namespace tensorwright
