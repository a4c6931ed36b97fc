// Lets the k-th allocation, mapping, read or thread start of this process fail, once, and counts what is
// held. To be included by one file of a test program: it defines operator new and takes the place of system
// calls.
#ifndef TENSORWRIGHT_TESTS_CPP_FAILING_CALLS_H_
#define TENSORWRIGHT_TESTS_CPP_FAILING_CALLS_H_

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>

namespace tw_test {

enum class Call { kAllocation, kMapping, kRead, kThread };

// A thread in which nothing fails, and one in which everything does that is to fail in one thread alone.
inline thread_local bool spared = false, chosen = false;

// Counts down while `armed`; the call that reaches 0 fails, and with `lasting` all after it.
struct Fault {
  std::atomic<bool> armed{false}, lasting{false}, in_chosen{false};
  std::atomic<int> call{0};
  std::atomic<int64_t> left{0};

  bool fails(int64_t before) const { return lasting.load() ? before <= 1 : before == 1; }
  bool strikes(Call which) {
    return !spared && (chosen || !in_chosen.load()) && armed.load() &&
           call.load() == static_cast<int>(which) && fails(left.fetch_sub(1));
  }
};
inline Fault fault;
inline std::atomic<int64_t> allocations_held{0}, bytes_mapped{0}, threads_held{0};

// The k-th call of this kind fails while it lives, in whatever thread; lasting: and all after it; here: of
// those of the thread that makes it.
class FailCall {
 public:
  FailCall(Call call, int64_t k, bool lasting = false, bool here = false) {
    fault.lasting = lasting;
    fault.in_chosen = chosen = here;
    fault.call = static_cast<int>(call), fault.left = k;
    fault.armed = true;
  }
  ~FailCall() { fault.armed = fault.in_chosen = chosen = false; }
  FailCall(const FailCall&) = delete;
  FailCall& operator=(const FailCall&) = delete;
};

// Whether the last FailCall came to fail something.
inline bool has_failed() { return fault.left <= 0; }

inline int64_t open_files() {
  int64_t count = 0;
  DIR* open = opendir("/proc/self/fd");
  while (readdir(open)) ++count;
  closedir(open);
  return count;
}

// What a run must give back.
struct Held {
  int64_t allocations = allocations_held, mapped = bytes_mapped, threads = threads_held, files = open_files();
  bool operator==(const Held&) const = default;
};

template <typename Fn>
Fn system_call(const char* name) {
  return reinterpret_cast<Fn>(dlsym(RTLD_NEXT, name));
}

inline void* allocate(size_t bytes, size_t alignment) {
  void* memory = nullptr;
  if (fault.strikes(Call::kAllocation) || posix_memalign(&memory, alignment, bytes) != 0)
    throw std::bad_alloc();
  ++allocations_held;
  return memory;
}
inline void give_back(void* memory) {
  if (memory) --allocations_held;
  free(memory);
}

}  // namespace tw_test

// Out of line, or the compiler sees free where it expects delete.
[[gnu::noinline]] void* operator new(size_t bytes) {
  return tw_test::allocate(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t alignment) {
  return tw_test::allocate(bytes, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  try {
    return operator new(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { tw_test::give_back(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { tw_test::give_back(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  tw_test::give_back(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  tw_test::give_back(memory);
}

// ThreadSanitizer maps memory before it can follow a function, so under it only allocations fail.
#ifndef __SANITIZE_THREAD__
extern "C" {

void* mmap(void* at, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  static const auto real = tw_test::system_call<decltype(&mmap)>("mmap");
  if (tw_test::fault.strikes(tw_test::Call::kMapping)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  void* mapped = real(at, bytes, protection, flags, file, offset);
  if (mapped != MAP_FAILED) tw_test::bytes_mapped += static_cast<int64_t>(bytes);
  return mapped;
}

int munmap(void* at, size_t bytes) noexcept {
  static const auto real = tw_test::system_call<decltype(&munmap)>("munmap");
  tw_test::bytes_mapped -= static_cast<int64_t>(bytes);
  return real(at, bytes);
}

ssize_t pread(int file, void* to, size_t bytes, off_t offset) {
  static const auto real = tw_test::system_call<decltype(&pread)>("pread");
  if (tw_test::fault.strikes(tw_test::Call::kRead)) {
    errno = EIO;
    return -1;
  }
  return real(file, to, bytes, offset);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* with) noexcept {
  static const auto real = tw_test::system_call<decltype(&pthread_create)>("pthread_create");
  if (tw_test::fault.strikes(tw_test::Call::kThread)) return EAGAIN;
  const int error = real(thread, attributes, run, with);
  if (error == 0) ++tw_test::threads_held;
  return error;
}

int pthread_join(pthread_t thread, void** result) {
  static const auto real = tw_test::system_call<decltype(&pthread_join)>("pthread_join");
  --tw_test::threads_held;
  return real(thread, result);
}

}  // extern "C"
#endif

#endif  // TENSORWRIGHT_TESTS_CPP_FAILING_CALLS_H_
