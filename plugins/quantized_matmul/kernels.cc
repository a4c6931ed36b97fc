// The quantized matmul kernels, best first.
#include "plugins/quantized_matmul/kernels.h"

extern "C" {
void tw_quantized_matmul_i8_scalar(const tw_quantized_matmul_args*);
void tw_quantized_matmul_i8_avx2(const tw_quantized_matmul_args*);
void tw_quantized_matmul_i8_avxvnni(const tw_quantized_matmul_args*);
void tw_quantized_matmul_i8_avx512vnni(const tw_quantized_matmul_args*);
void tw_quantized_matmul_i4_scalar(const tw_quantized_matmul_args*);
void tw_quantized_matmul_i4_avx2(const tw_quantized_matmul_args*);
void tw_quantized_matmul_i4_avxvnni(const tw_quantized_matmul_args*);
void tw_quantized_matmul_i4_avx512vnni(const tw_quantized_matmul_args*);
void tw_quantize_weights_scalar(const tw_quantize_weights_args*);
void tw_quantize_weights_avx2(const tw_quantize_weights_args*);
void tw_quantize_weights_avx512(const tw_quantize_weights_args*);
void tw_quantize_rows_scalar(const tw_quantize_rows_args*);
void tw_quantize_rows_avx2(const tw_quantize_rows_args*);
void tw_quantize_rows_avx512(const tw_quantize_rows_args*);
}

namespace tensorwright {

std::span<const KernelEntry<tw_quantized_matmul_fn>> quantized_matmul_kernels(int dtype) {
  static constexpr KernelEntry<tw_quantized_matmul_fn> kI8[] = {
      {"quantized_matmul_i8_avx512vnni", Isa::avx512, Extra::vnni, tw_quantized_matmul_i8_avx512vnni},
      {"quantized_matmul_i8_avxvnni", Isa::avx2, Extra::avx_vnni, tw_quantized_matmul_i8_avxvnni},
      {"quantized_matmul_i8_avx2", Isa::avx2, Extra::none, tw_quantized_matmul_i8_avx2},
      {"quantized_matmul_i8_scalar", Isa::scalar, Extra::none, tw_quantized_matmul_i8_scalar},
  };
  static constexpr KernelEntry<tw_quantized_matmul_fn> kI4[] = {
      {"quantized_matmul_i4_avx512vnni", Isa::avx512, Extra::vnni, tw_quantized_matmul_i4_avx512vnni},
      {"quantized_matmul_i4_avxvnni", Isa::avx2, Extra::avx_vnni, tw_quantized_matmul_i4_avxvnni},
      {"quantized_matmul_i4_avx2", Isa::avx2, Extra::none, tw_quantized_matmul_i4_avx2},
      {"quantized_matmul_i4_scalar", Isa::scalar, Extra::none, tw_quantized_matmul_i4_scalar},
  };
  if (dtype == TW_I4) return kI4;
  return kI8;
}

std::span<const KernelEntry<tw_quantize_rows_fn>> quantize_rows_kernels() {
  static constexpr KernelEntry<tw_quantize_rows_fn> kTable[] = {
      {"quantize_rows_avx512", Isa::avx512, Extra::none, tw_quantize_rows_avx512},
      {"quantize_rows_avx2", Isa::avx2, Extra::none, tw_quantize_rows_avx2},
      {"quantize_rows_scalar", Isa::scalar, Extra::none, tw_quantize_rows_scalar},
  };
  return kTable;
}

std::span<const KernelEntry<tw_quantize_weights_fn>> quantize_weights_kernels() {
  static constexpr KernelEntry<tw_quantize_weights_fn> kTable[] = {
      {"quantize_weights_avx512", Isa::avx512, Extra::none, tw_quantize_weights_avx512},
      {"quantize_weights_avx2", Isa::avx2, Extra::none, tw_quantize_weights_avx2},
      {"quantize_weights_scalar", Isa::scalar, Extra::none, tw_quantize_weights_scalar},
  };
  return kTable;
}

namespace {

const RegisteredKernels registered(/*place=*/20,
                                   {{"quantized_matmul int8", [] { return quantized_matmul_kernels(TW_I8); }},
                                    {"quantized_matmul int4", [] { return quantized_matmul_kernels(TW_I4); }},
                                    {"quantize_rows", [] { return quantize_rows_kernels(); }},
                                    {"quantize_weights", [] { return quantize_weights_kernels(); }}});

}  // namespace

}  // namespace tensorwright
