// Starts threads, and throws a typed error where the system refuses one.
#ifndef TENSORWRIGHT_RUNTIME_CORE_START_THREAD_H_
#define TENSORWRIGHT_RUNTIME_CORE_START_THREAD_H_

#include <system_error>
#include <thread>
#include <utility>

#include "runtime/core/base/concat.h"
#include "runtime/core/base/error.h"

namespace tensorwright {

// Throws Error{"OutOfMemoryError"} that says what the thread was for, and std::bad_alloc.
template <typename Fn>
std::thread start_thread(const char* purpose, Fn&& fn) {
  try {
    return std::thread(std::forward<Fn>(fn));
  } catch (const std::system_error& error) {
    throw Error("OutOfMemoryError", concat("cannot start a thread for ", purpose, " (", error.what(),
                                           "); ask for fewer threads, or raise the limit on them"));
  }
}

}  // namespace tensorwright

#endif  // TENSORWRIGHT_RUNTIME_CORE_START_THREAD_H_
