// Marks memory in which AddressSanitizer reports every access. Without that sanitizer, nothing happens.
#ifndef TENSORWRIGHT_RUNTIME_CORE_POISON_H_
#define TENSORWRIGHT_RUNTIME_CORE_POISON_H_

#include <cstddef>

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define TENSORWRIGHT_POISONS
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define TENSORWRIGHT_POISONS
#endif

#ifdef TENSORWRIGHT_POISONS
#include <sanitizer/asan_interface.h>
#endif

namespace tensorwright {

#ifdef TENSORWRIGHT_POISONS
inline constexpr bool kPoisons = true;
inline void poison(const void* data, size_t bytes) { __asan_poison_memory_region(data, bytes); }
inline void unpoison(const void* data, size_t bytes) { __asan_unpoison_memory_region(data, bytes); }
#else
inline constexpr bool kPoisons = false;
inline void poison(const void*, size_t) {}
inline void unpoison(const void*, size_t) {}
#endif

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_POISON_H_
