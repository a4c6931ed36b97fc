// What differs between processors below the kernels: the hint in a loop that waits, and the register that
// says whether denormals are flushed.
#ifndef TENSORWRIGHT_RUNTIME_CORE_PROCESSOR_H_
#define TENSORWRIGHT_RUNTIME_CORE_PROCESSOR_H_

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#error "tensorwright runs on x86-64 and aarch64 only"
#endif

#include <cstdint>

namespace tensorwright {

// Tells the processor that the thread waits for memory that another thread writes.
inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#else
  // YIELD is no more than a NOP on most processors with one thread per core. ISB empties the pipeline, which
  // takes about as long as the PAUSE of x86-64.
  __asm__ volatile("isb" ::: "memory");
#endif
}

// The bits that flush denormals to zero, of operands and of results: FTZ and DAZ of MXCSR, or FZ of FPCR.
#if defined(__x86_64__)
inline constexpr uint64_t kFlushDenormals = 0x8040;
#else
inline constexpr uint64_t kFlushDenormals = uint64_t{1} << 24;
#endif

// The control register of the thread's floating point arithmetic: MXCSR, or FPCR.
inline uint64_t float_control() {
#if defined(__x86_64__)
  return _mm_getcsr();
#else
  uint64_t value;
  __asm__ volatile("mrs %0, fpcr" : "=r"(value));
  return value;
#endif
}

inline void set_float_control(uint64_t value) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<uint32_t>(value));
#else
  __asm__ volatile("msr fpcr, %0" ::"r"(value) : "memory");
#endif
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_PROCESSOR_H_
