// The attention kernels, best first. All int8 kernels give the same bits, all int4 kernels, and the bf16
// kernels that widen; the bf16 kernel with dot instructions need not.
#include "plugins/paged_attention/kernels.h"

#include "runtime/core/base/error.h"

namespace tensorwright {

void attention_f32_scalar(const tw_attention_args*);
void attention_f32_avx512(const tw_attention_args*);
void attention_f32_avx2(const tw_attention_args*);
void attention_f32_neon(const tw_attention_args*);
void attention_bf16_scalar(const tw_attention_args*);
void attention_bf16_avx512(const tw_attention_args*);
void attention_bf16_avx2(const tw_attention_args*);
void attention_bf16_neon(const tw_attention_args*);
void attention_bf16_avx512bf16(const tw_attention_args*);
void attention_i8_scalar(const tw_attention_args*);
void attention_i8_avx512(const tw_attention_args*);
void attention_i8_avx2(const tw_attention_args*);
void attention_i8_neondot(const tw_attention_args*);
void attention_i8_neon(const tw_attention_args*);
void attention_i8_avx512vnni(const tw_attention_args*);
void attention_i4_scalar(const tw_attention_args*);
void attention_i4_avx512(const tw_attention_args*);
void attention_i4_avx2(const tw_attention_args*);
void attention_i4_neondot(const tw_attention_args*);
void attention_i4_neon(const tw_attention_args*);
void attention_i4_avxvnni(const tw_attention_args*);
void attention_i4_avx512vnni(const tw_attention_args*);
void latent_values_scalar(const tw_latent_values_args*);
void latent_values_avx512(const tw_latent_values_args*);
void latent_values_avx2(const tw_latent_values_args*);
void latent_values_neon(const tw_latent_values_args*);
void attention_shares_scalar(const tw_attention_shares_args*);
void attention_shares_avx512(const tw_attention_shares_args*);
void attention_shares_avx2(const tw_attention_shares_args*);
void attention_shares_neon(const tw_attention_shares_args*);
void attention_combine_scalar(const tw_attention_combine_args*);
void attention_combine_avx512(const tw_attention_combine_args*);
void attention_combine_avx2(const tw_attention_combine_args*);
void attention_combine_neon(const tw_attention_combine_args*);

std::span<const KernelEntry<tw_attention_fn>> attention_kernels(int dtype) {
  static const KernelEntry<tw_attention_fn> f32[] = {
      TW_ON_X86({"attention_f32_avx512", Isa::avx512, Extra::none, attention_f32_avx512},
                {"attention_f32_avx2", Isa::avx2, Extra::none, attention_f32_avx2})  //
      TW_ON_ARM({"attention_f32_neon", Isa::neon, Extra::none, attention_f32_neon})  //
      {"attention_f32_scalar", Isa::scalar, Extra::none, attention_f32_scalar},
  };
  static const KernelEntry<tw_attention_fn> bf16[] = {
      TW_ON_X86({"attention_bf16_avx512bf16", Isa::avx512, Extra::bf16, attention_bf16_avx512bf16},
                {"attention_bf16_avx512", Isa::avx512, Extra::none, attention_bf16_avx512},
                {"attention_bf16_avx2", Isa::avx2, Extra::none, attention_bf16_avx2})  //
      TW_ON_ARM({"attention_bf16_neon", Isa::neon, Extra::none, attention_bf16_neon})  //
      {"attention_bf16_scalar", Isa::scalar, Extra::none, attention_bf16_scalar},
  };
  static const KernelEntry<tw_attention_fn> i8[] = {
      TW_ON_X86({"attention_i8_avx512vnni", Isa::avx512, Extra::vnni, attention_i8_avx512vnni},
                {"attention_i8_avx512", Isa::avx512, Extra::none, attention_i8_avx512},
                {"attention_i8_avx2", Isa::avx2, Extra::none, attention_i8_avx2})  //
      TW_ON_ARM({"attention_i8_neondot", Isa::neon, Extra::neon_dotprod, attention_i8_neondot},
                {"attention_i8_neon", Isa::neon, Extra::none, attention_i8_neon})  //
      {"attention_i8_scalar", Isa::scalar, Extra::none, attention_i8_scalar},
  };
  static const KernelEntry<tw_attention_fn> i4[] = {
      TW_ON_X86({"attention_i4_avx512vnni", Isa::avx512, Extra::vnni, attention_i4_avx512vnni},
                {"attention_i4_avx512", Isa::avx512, Extra::none, attention_i4_avx512},
                {"attention_i4_avxvnni", Isa::avx2, Extra::avx_vnni, attention_i4_avxvnni},
                {"attention_i4_avx2", Isa::avx2, Extra::none, attention_i4_avx2})  //
      TW_ON_ARM({"attention_i4_neondot", Isa::neon, Extra::neon_dotprod, attention_i4_neondot},
                {"attention_i4_neon", Isa::neon, Extra::none, attention_i4_neon})  //
      {"attention_i4_scalar", Isa::scalar, Extra::none, attention_i4_scalar},
  };
  if (dtype == TW_F32) return f32;
  if (dtype == TW_BF16) return bf16;
  if (dtype == TW_I8) return i8;
  if (dtype == TW_I4) return i4;
  throw Error("EngineError",
              "attention needs a float32, bfloat16, int8 or int4 cache, not dtype " + std::to_string(dtype));
}

std::span<const KernelEntry<tw_attention_combine_fn>> attention_combine_kernels() {
  static const KernelEntry<tw_attention_combine_fn> table[] = {
      TW_ON_X86({"attention_combine_avx512", Isa::avx512, Extra::none, attention_combine_avx512},
                {"attention_combine_avx2", Isa::avx2, Extra::none, attention_combine_avx2})  //
      TW_ON_ARM({"attention_combine_neon", Isa::neon, Extra::none, attention_combine_neon})  //
      {"attention_combine_scalar", Isa::scalar, Extra::none, attention_combine_scalar},
  };
  return table;
}

std::span<const KernelEntry<tw_attention_shares_fn>> attention_shares_kernels() {
  static const KernelEntry<tw_attention_shares_fn> table[] = {
      TW_ON_X86({"attention_shares_avx512", Isa::avx512, Extra::none, attention_shares_avx512},
                {"attention_shares_avx2", Isa::avx2, Extra::none, attention_shares_avx2})  //
      TW_ON_ARM({"attention_shares_neon", Isa::neon, Extra::none, attention_shares_neon})  //
      {"attention_shares_scalar", Isa::scalar, Extra::none, attention_shares_scalar},
  };
  return table;
}

std::span<const KernelEntry<tw_latent_values_fn>> latent_values_kernels() {
  static const KernelEntry<tw_latent_values_fn> table[] = {
      TW_ON_X86({"latent_values_avx512", Isa::avx512, Extra::none, latent_values_avx512},
                {"latent_values_avx2", Isa::avx2, Extra::none, latent_values_avx2})  //
      TW_ON_ARM({"latent_values_neon", Isa::neon, Extra::none, latent_values_neon})  //
      {"latent_values_scalar", Isa::scalar, Extra::none, latent_values_scalar},
  };
  return table;
}

namespace {

const RegisteredKernels registered_paged_attention(
    /*place=*/60, {{"attention float32", [] { return attention_kernels(TW_F32); }},
                   {"attention bfloat16", [] { return attention_kernels(TW_BF16); }},
                   {"attention int8", [] { return attention_kernels(TW_I8); }},
                   {"attention int4", [] { return attention_kernels(TW_I4); }},
                   {"attention_combine", [] { return attention_combine_kernels(); }},
                   {"attention_shares", [] { return attention_shares_kernels(); }},
                   {"latent_values", [] { return latent_values_kernels(); }}});

}  // namespace

}  // namespace tensorwright
